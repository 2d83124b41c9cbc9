"""Paceline as a library, beside `train`: `evaluate`, `predict`, `export`, `report` and `runs`.

The work happens in a worker process, as on the command line, because TensorFlow's settings must be
made before it is loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paceline.api.training import Result
from paceline.errors import UserError
from paceline.experiment.data import Views
from paceline.messages import Message, Predictions
from paceline.requests import EvaluateRequest, ExportRequest, PredictRequest, Quantize
from paceline.results.in_worker import in_a_worker
from paceline.results.shown import ShownAsTable
from paceline.run_folder.finding import existing_run
from paceline.storage.locations import is_remote

if TYPE_CHECKING:
    from paceline.results.predict import Prediction
    from paceline.results.scores import Evaluation
    from paceline.run_folder.listing import RunSummary

AnyRun = str | Path | Result
"""Folder of a run, its name in runs/, or the result of a training. The code of a training that this
process started is the caller's own, so it is trusted."""


class Runs(ShownAsTable, list["RunSummary"]):
    """The runs of a folder. They show themselves as a table."""

    def caption(self) -> str:
        return f"{len(self)} runs"

    def rows(self) -> list[dict[str, object]]:
        return [{**vars(run), "changed": datetime.fromtimestamp(run.changed)} for run in self]


class Report(list[str]):
    """A report that was written: a line for each run that is left out. A notebook links to it."""

    def __init__(self, path: Path, left_out: Sequence[str]) -> None:
        super().__init__(left_out)
        self.path = path

    def __repr__(self) -> str:
        return "\n".join([f"ready: {self.path}", *(f"left out: {line}" for line in self)])

    def _repr_html_(self) -> str:
        lines = "".join(f"<br>left out: {escape(line)}" for line in self)
        return (
            f'<a href="{quote(str(self.path))}" target="_blank">{escape(str(self.path))}</a>{lines}'
        )


def _found(run: AnyRun) -> str | Path:
    return run.run_dir if isinstance(run, Result) else run


def evaluate(
    run: AnyRun,
    *,
    checkpoint: str = "best",
    data_dir: str = "",
    split: str = "test",
    views: Views = "none",
    trust_code: bool = False,
) -> Evaluation:
    """Evaluate a checkpoint of a run, with the same bits as the evaluation during training.

    Args:
        run: Folder of the run, its name in runs/, or the Result of `train`.
        checkpoint: "best", "last" or a step.
        data_dir: Current folder of the data. Default: the folder that training used.
        split: "test" or "validation".
        views: "mirror" or "shifts" averages the outputs over several versions of each image.
        trust_code: Whether to run your own code that the run names. Not needed for a Result.

    Example:
        paceline.evaluate("runs/smoke-1a2b3c4d", checkpoint="last").accuracy
    """
    import numpy as np

    from paceline.results.scores import NUMBERS, Evaluation

    with tempfile.TemporaryDirectory(prefix="paceline-eval-") as folder:
        file = str(Path(folder, "examples.npz"))
        request = EvaluateRequest(checkpoint, data_dir, split, views, examples=file)
        trusted = trust_code or isinstance(run, Result)
        outcome = in_a_worker(existing_run(_found(run)), request, trust_code=trusted)
        with np.load(file) as examples:
            arrays = {name: examples[name] for name in ("labels", "probabilities")}
    classes = tuple(score["name"] for score in outcome["classes"])
    return Evaluation(**{name: outcome[name] for name in NUMBERS}, classes=classes, **arrays)


def predict(
    run: AnyRun,
    pictures: str | Path | Sequence[Any],
    *,
    checkpoint: str = "best",
    top: int = 5,
    views: Views = "none",
    trust_code: bool = False,
) -> list[Prediction]:
    """Predict the classes of images. For many calls, use `load_predictor`.

    Args:
        run: Folder of the run, its name in runs/, or the Result of `train`.
        pictures: Image files, folders or globs, arrays (uint8, or floats from 0 to 1) or images of
            PIL; one or several. If a file is not an image, its prediction has an error instead of
            classes. For arrays, `file` is the number of the image, from 0.
        checkpoint: "best", "last" or a step.
        top: Number of classes for each image, the most probable first.
        views: "mirror" or "shifts" averages the outputs over several versions of each image.
        trust_code: Whether to run your own code that the run names. Not needed for a Result.

    Example:
        for prediction in paceline.predict("runs/smoke-1a2b3c4d", "photos/*.jpg", top=1):
            print(prediction.file, prediction.top)
    """
    from paceline.results.predict import Prediction, find_files

    found: list[Prediction] = []

    def listen(message: Message) -> None:
        if isinstance(message, Predictions):
            found.extend(Prediction.from_json(each) for each in message.predictions)

    with tempfile.TemporaryDirectory(prefix="paceline-predict-") as folder:
        files = find_files(_as_files(pictures, Path(folder)))
        request = PredictRequest(tuple(files), checkpoint, top, views)
        trusted = trust_code or isinstance(run, Result)
        in_a_worker(existing_run(_found(run)), request, listen, trusted)
    own = {str(Path(folder, name)): name for name in map(str, range(len(found)))}
    return [replace(each, file=own.get(each.file, each.file)) for each in found]


def _as_files(pictures: str | Path | Sequence[Any], folder: Path) -> list[str]:
    """Return what `find_files` takes: arrays and PIL's images as PNG files, which lose nothing."""
    import numpy as np
    from PIL import Image

    from paceline.formats.arrays import to_bytes

    images: Any = to_bytes(pictures, "given") if isinstance(pictures, np.ndarray) else pictures
    one = isinstance(images, str | Path | Image.Image) or getattr(images, "ndim", 4) < 4
    files: list[str] = []
    for each in [images] if one else images:
        if isinstance(each, str | Path):
            files.append(str(each))
            continue
        pixels = to_bytes(np.asarray(each), "given") if not isinstance(each, Image.Image) else None
        grey = pixels is not None and pixels.shape[2:] == (1,)
        files.append(str(folder / str(len(files))))
        image = each if pixels is None else Image.fromarray(pixels[..., 0] if grey else pixels)
        image.save(files[-1], "PNG")
    return files


def export(
    run: AnyRun,
    out: str | Path,
    *,
    to: str = "",
    checkpoint: str = "best",
    force: bool = False,
    trust_code: bool = False,
    quantize: Quantize = "",
    data_dir: str = "",
) -> Path:
    """Export the model of a run, with its class names, and return the path of the export.

    Args:
        run: Folder of the run, its name in runs/, or the Result of `train`.
        out: File to write, or folder for a SavedModel.
        to: "keras", "savedmodel", "onnx", "tflite" or "safetensors"; by default, the extension of
            `out` decides.
        checkpoint: "best", "last" or a step.
        force: Whether to replace `out` if it exists.
        trust_code: Whether to run your own code that the run names. Not needed for a Result.
        quantize: "int8" writes 8-bit weights and activations (only tflite).
        data_dir: Folder where the training images are now, for int8.

    Example:
        paceline.export("runs/smoke-1a2b3c4d", "model.onnx")
    """
    from paceline.results.export import run_export

    request = ExportRequest(str(out), to, checkpoint, quantize, data_dir)
    trusted = trust_code or isinstance(run, Result)
    return Path(run_export(_found(run), request, force, trusted)["out"])


def report(
    runs: AnyRun | Sequence[AnyRun], out: str | Path = "report.html", *, force: bool = False
) -> Report:
    """Write one self-contained page about runs.

    The result lists the runs that cannot be read, and in a notebook is a link to the page.

    Args:
        runs: Folders of runs, their names in runs/, or results of `train`; one or several.
        out: The HTML file to write.
        force: Whether to replace `out` if it exists.

    Example:
        paceline.report(["runs/smoke-1a2b3c4d", "runs/smoke-5e6f7a8b"], "both.html")
    """
    from paceline.extras.report.report_page import write_report

    each = [runs] if isinstance(runs, str | Path | Result) else runs
    return Report(Path(out), write_report([str(_found(run)) for run in each], Path(out), force))


def runs(folder: str | Path = "runs", *, sort: str = "changed") -> Runs:
    """List the runs in a folder, the newest, best or fastest first; `.dataframe()` for pandas.

    The note of an unfinished run is the command that continues it.

    Args:
        folder: Folder that contains the run folders.
        sort: "name", "state", "step", "accuracy", "loss", "speed" or "changed".

    Example:
        for row in paceline.runs(sort="accuracy"):
            print(row.name, row.state, row.accuracy)
    """
    from paceline.run_folder.listing import COLUMNS, list_runs

    if sort not in COLUMNS:
        raise UserError(f"sort is {sort!r}; it must be one of {', '.join(COLUMNS)}")
    if not is_remote(folder) and not Path(folder).is_dir():
        raise UserError(
            f"there is no folder {folder}; train something first, or give the folder that contains "
            "your runs"
        )
    return Runs(list_runs(folder, sort))
