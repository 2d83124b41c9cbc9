"""`paceline export`: write a run's model in a format that is used without Paceline.

It checks the target, describes the export with its preprocessing, and replaces the target only when
the new one is complete. The formats belong to `export_formats`. `check_target` needs no TensorFlow.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json
from paceline.job import Job
from paceline.messages import Send, Warn
from paceline.requests import ExportRequest
from paceline.results.export_formats import FORMATS, Facts, Format
from paceline.results.in_worker import in_a_worker
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import explained, replacing_path

if TYPE_CHECKING:
    from paceline.results.trained_model import TrainedModel

DECODE = (
    "the whole image as 8-bit RGB; JPEG by libjpeg's accurate integer DCT with smooth chroma and "
    "turned upright by its EXIF orientation; transparency dropped (in a GIF: black), the upper 8 "
    "of 16 bits, the first frame of several"
)
FILTER = "bilinear with antialiasing (the triangle is widened by the scale)"
GREY = (0.2989, 0.587, 0.114)


def check_target(out: str, to: str, force: bool) -> None:
    """Refuse a target that exists, unless forced, and anything that is not an export to `to`."""
    if to not in FORMATS:
        raise UserError(f"to is {to!r} for {out}; it must be one of {', '.join(FORMATS)}")
    path, form = Path(out), FORMATS[to]
    if form.suffix and path.suffix != form.suffix:
        raise UserError(
            f"OUT is {out}; Keras opens only files that end in {form.suffix}: "
            f"use {path.with_suffix(form.suffix)}"
        )
    if path.exists() and not force:
        raise UserError(f"{path} exists; pass --force to replace it, or use another name")
    other_folder = path.is_dir() and any(path.iterdir()) and not (path / "saved_model.pb").exists()
    if path.exists() and (path.is_dir() != form.is_folder or other_folder):
        raise UserError(f"{out} is not an export to {to}; remove it yourself, or use another name")


def run_export(
    run: str | Path,
    request: ExportRequest,
    force: bool,
    trust_code: bool,
    listen: Send = lambda message: None,
) -> Json:
    """Export in a worker process, whose messages go to `listen`; return what was written. Without
    a format, the ending of the target chooses it."""
    request = replace(request, to=request.to or Path(request.out).suffix[1:] or "savedmodel")
    folder = existing_run(run)
    check_target(request.out, request.to, force)
    if request.quantize and request.to != "tflite":
        given = f"quantize is {request.quantize} for {request.to}"
        raise UserError(f"{given}; only tflite can be quantized")
    return in_a_worker(folder, request, listen, trust_code)


def answer(job: Job, request: ExportRequest, send: Send) -> Json:
    """Export in a worker; return the target, the step, and what the export takes and gives."""
    from paceline.results.trained_model import load_trained_model

    run, out, to = RunFolder(job.run.run_dir), Path(request.out), request.to
    form, precision = FORMATS[to], job.experiment.precision
    if not all(find_spec(name) for name in form.packages):
        needed = " and ".join(form.packages)
        raise UserError(
            f"exporting to {to} needs the packages {needed}: pip install 'paceline[{to}]'"
        )
    trained = load_trained_model(run, request.checkpoint, float32=True)
    from paceline.kernels.arithmetic import portable

    if precision != "float32":
        send(Warn(f"the export computes in float32, the training did in {precision}"))
    facts = _describe(run, trained, form)
    if facts["inside"] == "scale":
        advice = "docs/using-a-run.md shows how a file becomes that"
        size = f"the input is {facts['input']}, of no other size"
        send(Warn(f"{to} cannot decode JPEG: {size}; {advice}"))
    what = " -> ".join(filter(None, (facts["input"], facts["output"])))
    with explained("write", out), portable(), replacing_path(out) as new:
        if request.quantize:
            from paceline.results.tflite import sample_images, write_tflite

            sample = sample_images(run, trained, request.data_dir, send)
            what = f"{what}; {write_tflite(trained, new, facts, sample)}"
        else:
            form.write(trained, new, facts)
    return {"out": str(out), "step": trained.state.step, "what": what}


def _describe(run: RunFolder, trained: TrainedModel, form: Format) -> Facts:
    shape = ", ".join(map(str, trained.image_shape))
    takes = form.takes or f"pixels from 0 to 255, float32 [{form.count}, {shape}]"
    gives, inside = f"probabilities, float32 [{form.count}, {len(trained.classes)}]", form.inside
    if form.weights_only:
        takes, gives, inside = "weights only", "", "nothing"
    return {
        "classes": trained.classes,
        "input": takes,
        "output": gives,
        "image_shape": trained.image_shape,
        "preprocessing": describe_preprocessing(trained.experiment, trained.stored_shape),
        "inside": inside,  # the part of the preprocessing that the export contains
        "run": run.path.name,
        "step": trained.state.step,
        "state_sha256": trained.state.sha256(),
    }


def describe_preprocessing(experiment: Experiment, stored: tuple[int, int, int] | None) -> Facts:
    """Return the steps from a file to the model's input, in their order; None where there is no
    such step. docs/using-a-run.md explains every step and repeats them in Pillow and NumPy.

    `stored` is the shape of the images in the data source, None if they are encoded in any size.
    """
    size, augment, scaling = experiment.data.image_size, experiment.augment, experiment.scaling
    resize_again, window = None, None  # window: top, left, height and width
    if stored and (crop := augment.crop_size):
        top, left = (-((crop - side) // 2) for side in stored[:2])
        window = (top, left, crop, crop)
    elif stored and size and stored[:2] != (size, size):
        height, width = stored[:2]
        tall = max(size, round(height * size / width))  # as `data.images` computes it
        wide = max(size, round(width * size / height))
        resize_again = (tall, wide)
        window = ((tall - size) // 2, (wide - size) // 2, size, size)
    channels = stored[2] if stored else 3
    mean, std = scaling.mean[:channels], scaling.std[:channels]
    return {
        "decode": DECODE,
        "crop": (1, 1) if stored else (size, (size * 8 + 3) // 7),
        "resize": stored[:2] if stored else (size, size),
        "filter": FILTER,
        "round": stored is not None,
        "grey": GREY if stored and channels == 1 else None,
        "resize_again": resize_again,
        "window": window,
        "padding": "reflect" if augment.padding_mode == "reflect" else "constant",
        "scale": {"kind": scaling.method, "mean": mean, "std": std},
    }
