"""`paceline export`: write a run's model in a format that is used without Paceline.

It checks the target, describes the export, and replaces the target only when the new one is
complete. The formats belong to `export_formats`. `check_target` needs no TensorFlow.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError
from paceline.experiment.data import Views
from paceline.job import Job
from paceline.messages import Send, Warn
from paceline.requests import ExportRequest
from paceline.results.export_formats import FORMATS, ExportFacts, Format
from paceline.results.in_worker import in_a_worker
from paceline.results.preprocessing import describe_preprocessing
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import explained, replacing, replacing_path

if TYPE_CHECKING:
    from paceline.results.trained_model import TrainedModel


def check_target(out: str, to: str, force: bool) -> None:
    """Refuse a target that exists, unless forced, and anything that is not an export to `to`."""
    if to not in FORMATS:
        raise UserError(f"to is {to!r}; it must be one of {', '.join(FORMATS)}")
    path, form = Path(out), FORMATS[to]
    if form.suffix and path.suffix != form.suffix:
        raise UserError(
            f"OUT is {out}; Keras opens only files that end in {form.suffix}: "
            f"use {path.with_suffix(form.suffix)}"
        )
    for each in (path, description_of(path, form)):
        if each.exists() and not force:
            raise UserError(f"{each} exists; give --force to replace it, or another name")
    if not path.exists():
        return
    other_folder = path.is_dir() and any(path.iterdir()) and not (path / "saved_model.pb").exists()
    if path.is_dir() != form.is_folder or other_folder:
        raise UserError(f"{out} is not an export to {to}; remove it yourself, or give another name")


def description_of(out: Path, form: Format) -> Path:
    """Return the JSON file that describes an export: beside a file, inside a folder."""
    return out / "preprocessing.json" if form.is_folder else out.with_name(f"{out.name}.json")


def run_export(
    run: str | Path,
    out: str | Path,
    to: str,
    serving: bool | None,
    checkpoint: str,
    views: Views,
    force: bool,
    trust_code: bool = False,
    listen: Send = lambda message: None,
) -> dict[str, Any]:
    """Export in a worker process, whose messages go to `listen`; return what was written.

    With `serving` None, every format contains as much of the preprocessing as it can.
    """
    if to == "safetensors" and (serving or views != "none"):
        what = "serving is" if serving else "views are"
        raise UserError(f"safetensors contains only weights; {what} for keras, savedmodel and onnx")
    folder = existing_run(run)
    check_target(str(out), to, force)
    serving = to != "safetensors" if serving is None else serving
    request = ExportRequest(str(out), to, serving, checkpoint, views)
    return in_a_worker(folder, request, listen, trust_code)


def answer(job: Job, request: ExportRequest, send: Send) -> dict[str, Any]:
    """Export in a worker; return the target, the step, and what the export takes and gives."""
    from paceline.results.trained_model import load_trained_model

    run, out = RunFolder(job.run.run_dir), Path(request.out)
    form, precision = FORMATS[request.to], job.experiment.precision
    _check_packages(request.to, form)
    trained = load_trained_model(run, request.checkpoint, precision="float32")
    if precision != "float32":
        send(Warn(f"the export computes in float32, the training did in {precision}"))
    trained = replace(trained, views=request.views)
    facts = describe(run, trained, form, request.serving)
    if request.serving and not form.decodes_files:
        advice = "docs/preprocessing.md shows how a file becomes that"
        send(Warn(f"{request.to} cannot decode JPEG: the input is {facts.input}; {advice}"))
    with explained("write", out):
        _write(trained, out, form, request.serving, facts)
    what = " -> ".join(filter(None, (facts.input, facts.output)))
    return {"out": str(out), "step": trained.state.step, "what": what}


def _write(
    trained: TrainedModel, out: Path, form: Format, serving: bool, facts: ExportFacts
) -> None:
    """Export to `out`, with a description. A stale description is never left next to a file."""
    description = facts.to_json()
    with replacing_path(out) as new:
        form.write(trained, new, serving, facts)
        if form.is_folder:
            description_of(new, form).write_text(description)
        else:
            description_of(out, form).unlink(missing_ok=True)
    if not form.is_folder:
        with replacing(description_of(out, form)) as file:
            file.write(description.encode())


def _check_packages(to: str, form: Format) -> None:
    if not all(find_spec(name) for name in form.packages):
        raise UserError(
            f"exporting to {to} needs the packages {' and '.join(form.packages)}: "
            f"pip install 'paceline[{to}]'"
        )


def describe(run: RunFolder, trained: TrainedModel, form: Format, serving: bool) -> ExportFacts:
    """Return what is stored with an export: classes, input, output, preprocessing and origin."""
    images = f"float32 [n, {', '.join(map(str, trained.image_shape))}]"
    takes = f"pixels from 0 to 255, {images}" if serving else f"scaled images, {images}"
    if serving and form.decodes_files:
        takes = "JPEG or PNG images, strings [n]"
    inside = "nothing"
    if serving and not form.weights_only:
        inside = "all steps" if form.decodes_files else "scale"
    kind = "logits" if trained.gives_logits and not serving else "probabilities"
    gives = f"{kind}, float32 [n, {len(trained.classes)}]"
    return ExportFacts(
        classes=trained.classes,
        input="weights only" if form.weights_only else takes,
        output="" if form.weights_only else gives,
        image_shape=trained.image_shape,
        views=trained.views,
        preprocessing=describe_preprocessing(trained.experiment, trained.stored_shape),
        inside=inside,
        run=run.path.name,
        step=trained.state.step,
        state_sha256=trained.state.sha256(),
    )
