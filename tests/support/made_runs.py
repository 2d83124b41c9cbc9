"""Run folders with a model, made in this process without training. Not a test itself."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from paceline.build import build_core
from paceline.experiment.experiment import Average, Data, Experiment, Model, Scaling
from paceline.fingerprint import data_facts
from paceline.formats.arrays import save_arrays
from paceline.job import Job, Run
from paceline.maths.replica import Core
from paceline.maths.state import State
from paceline.requests import ExportRequest, Quantize
from paceline.results.export import answer
from paceline.run_folder.checkpoints import Checkpoints, identity_of
from paceline.run_folder.folder import RunFolder
from small_images import encode as encode

SMALL = Experiment(model=Model(depth=8, width=4), global_batch_size=16, replicas=2, steps=4)


def make_run(
    folder: Path, experiment: Experiment, metrics: tuple[float | None, ...] = (None,)
) -> tuple[RunFolder, Core]:
    """Make a run with a checkpoint for each of `metrics`, of steps 1, 2 ..., with other weights."""
    job, run = Job(experiment), RunFolder(folder)
    core = build_core(job)
    run.open(experiment, data_facts(job, core), core.template.kernels)
    checkpoints = Checkpoints(run.checkpoints, core.layout, 10, identity_of(run))
    for step, metric in enumerate(metrics, 1):
        checkpoints.save(_state(core, step), metric)
    return run, core


def _state(core: Core, step: int) -> State:
    """Return weights and statistics as after some training: logits differ between classes."""
    random, vectors = np.random.default_rng(step), core.initial_state().vectors
    changed = {
        name: vector + 0.1 * random.normal(size=vector.size).astype(np.float32)
        for name, vector in vectors.items()
    }
    return State(step, changed | {"stats": np.abs(changed["stats"]) + np.float32(0.3)})


def make_grey_run(root: Path, scaling: str = "mean_std") -> tuple[RunFolder, Core, np.ndarray]:
    """Make a run on grey images that are not square, [n, 12, 10, 1]; return the test split too."""
    random = np.random.default_rng(3)
    train, test = (random.integers(0, 256, (count, 12, 10, 1), np.uint8) for count in (40, 9))
    labels = np.arange(40) % 3
    save_arrays(root / "arrays", (train, labels), (test, labels[:9]), ("a", "b", "[red]c"))
    experiment = replace(
        SMALL, data=Data(source="arrays", dir=str(root / "arrays")), scaling=Scaling(scaling)
    )
    return *make_run(root / "grey", experiment), test


def make_pictures_run(root: Path) -> tuple[RunFolder, Core, list[Path]]:
    """Make a run on JPEGs of many sizes, some turned by EXIF; return the test files in order."""
    random = np.random.default_rng(4)
    for part, count in (("train", 9), ("val", 4)):
        for label in ("left", "right"):
            place = root / "pictures" / part / label
            place.mkdir(parents=True)
            for number in range(count):
                height, width = random.integers(20, 90, 2)
                save(
                    place / f"{number}.jpg",
                    random.integers(0, 256, (height, width, 3), np.uint8),
                    orientation=number % 8 + 1,
                )
    data = Data(source="pictures", dir=str(root / "pictures"), image_size=16)
    run, core = make_run(root / "run-of-pictures", replace(SMALL, data=data, average=Average(0.9)))
    return run, core, sorted((root / "pictures" / "val").rglob("*.jpg"))


def save(path: Path, pixels: np.ndarray, orientation: int = 1) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif, quality=95)


def export(run: RunFolder, out: Path, to: str, quantize: Quantize = "") -> list[str]:
    """Export a run in this process, as the worker of the command does; return the warnings."""
    notes: list[str] = []
    job = Job(run.experiment(), run=Run(run_dir=str(run.path)))
    request = ExportRequest(str(out), to, quantize=quantize)
    done = answer(job, request, lambda message: notes.append(message.text))
    assert done["out"] == str(out)
    return [*notes, done["what"]] if quantize else notes
