"""Paceline as a library: `train`, `evaluate`, `predict`, `export`, `report` and `runs`.

The work happens in a worker process, as on the command line, because TensorFlow's settings must be
made before it is loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import messages
from paceline.config.experiment import Experiment
from paceline.config.job import Job, Place, Run
from paceline.config.recipes import get_recipe
from paceline.config.views import Views
from paceline.errors import UserError
from paceline.messages import Block, Message, Predictions
from paceline.places import launch
from paceline.results.in_worker import in_a_worker
from paceline.run_folder.finding import default_path, existing_run
from paceline.run_folder.storage import cache_folder, is_remote

if TYPE_CHECKING:
    import numpy as np

    from paceline.results.evaluate import Evaluation
    from paceline.results.predict_files import Prediction
    from paceline.run_folder.listing import RunSummary
    from paceline.worker.loop import Action

    Arrays = tuple[np.ndarray, np.ndarray]
    """Images and labels."""


@dataclass(frozen=True)
class Result:
    """The result of a training. A notebook shows it with its curves."""

    step: int
    finished: bool
    test_accuracy: float | None
    test_loss: float | None
    images_per_second: float | None
    state_sha256: str
    run_dir: str

    @property
    def history(self) -> Any:
        """Return metrics.jsonl as a DataFrame, or as dictionaries if pandas is not installed."""
        records = existing_run(self.run_dir, checkpoints=False).metrics.read()
        try:
            import pandas
        except ImportError:
            return records
        return pandas.DataFrame.from_records(records)

    def _repr_html_(self) -> str:
        from paceline.results.report.page import render_fragment
        from paceline.results.report.run_data import read_run

        return render_fragment(read_run(existing_run(self.run_dir, checkpoints=False)))


def train(
    experiment: Experiment | str = "shapes",
    *,
    data: Arrays | None = None,
    test: Arrays | None = None,
    classes: Sequence[str] | None = None,
    actions: Sequence[Action] = (),
    place: Place | None = None,
    run: Run | None = None,
    progress: bool = True,
) -> Result:
    """Train an experiment, or continue its unfinished run.

    Args:
        experiment: The experiment, or the name of a recipe.
        data: Training images and labels instead of the experiment's data: uint8
            [n, height, width] or [n, height, width, channels], and integers from 0.
        test: Test images and labels, in the same form.
        classes: Names of the classes of `data`.
        actions: Each is called in this process with (step, metrics) after every block and every
            evaluation. If one raises StopIteration, the run stops as after an interruption. Any
            other error ends the run after a checkpoint.
        place: Where the workers run. The default is one process on this machine.
        run: The run folder and what is written to it. By default the folder is
            runs/<name>-<hash of the experiment>.
        progress: Whether to show progress on the terminal.

    Example:
        result = paceline.train("smoke", place=paceline.Place(workers=2))
        print(result.test_accuracy)
    """
    name = experiment if isinstance(experiment, str) else "custom"
    chosen = get_recipe(experiment) if isinstance(experiment, str) else experiment
    run = run or Run()
    if data is not None:
        folder = _save_arrays(run.run_dir, data, test, classes)
        chosen = replace(chosen, data=replace(chosen.data, source="arrays", dir=str(folder)))
    if not run.run_dir:
        run = replace(run, run_dir=str(default_path(name, chosen)))
    outcome = run_job(Job(chosen, place or Place(), run), actions, progress)
    return Result(**{name: outcome[name] for name in Result.__dataclass_fields__})


def _save_arrays(
    run_dir: str, data: Arrays, test: Arrays | None, classes: Sequence[str] | None
) -> Path:
    """Write images and labels where workers can read them; return the folder."""
    from paceline.data.sources.arrays import save_arrays_by_digest

    root = Path(run_dir).parent if run_dir else Path("runs")
    root = cache_folder() / "data" if is_remote(run_dir) else root
    return Path(save_arrays_by_digest(root, data, test, classes))


def run_job(job: Job, actions: Sequence[Action] = (), progress: bool = True) -> dict[str, Any]:
    """Train, show progress, call the actions, and return the result as result.json has it."""
    from contextlib import ExitStack

    from paceline.cli.progress import Progress

    with ExitStack() as stack:
        show = stack.enter_context(Progress()).handle if progress else lambda message: None

        def listen(message: Message) -> None:
            show(message)
            if isinstance(message, Block | messages.Evaluation):
                for action in actions:
                    action(message.step, message.metrics)

        return launch(job, listen)


def evaluate(
    run: str | Path,
    *,
    checkpoint: str = "best",
    data_dir: str = "",
    split: str = "test",
    views: Views = "none",
    trust_code: bool = False,
) -> Evaluation:
    """Evaluate a checkpoint of a run, with the same bits as the evaluation during training.

    Args:
        run: Folder of the run, or its name in runs/.
        checkpoint: "best", "last" or a step.
        data_dir: Folder where the data is now. Empty means where the training found it.
        split: "test" or "validation".
        views: "mirror" or "shifts" averages the outputs over several versions of each image.
        trust_code: Whether to run code of your own that the run names.

    Returns:
        Accuracy, loss, and the label and probabilities of each example.

    Example:
        paceline.evaluate("runs/smoke-1a2b3c4d", checkpoint="last").accuracy
    """
    import numpy as np

    from paceline.results.evaluate import Evaluation

    with tempfile.TemporaryDirectory(prefix="paceline-eval-") as folder:
        file = str(Path(folder, "examples.npz"))
        request = {"checkpoint": checkpoint, "data_dir": data_dir, "split": split, "examples": file}
        request["views"] = views
        outcome = in_a_worker("evaluate", existing_run(run), request, trust_code=trust_code)
        with np.load(file) as examples:
            arrays = {name: examples[name] for name in ("labels", "probabilities")}
    names = tuple(score["name"] for score in outcome.pop("classes"))
    return Evaluation(**outcome, classes=names, **arrays)


def predict(
    run: str | Path,
    pictures: str | Path | Sequence[str | Path],
    *,
    checkpoint: str = "best",
    top: int = 5,
    views: Views = "none",
    trust_code: bool = False,
) -> list[Prediction]:
    """Predict the classes of images. For bytes, and for many calls, use `load_predictor`.

    Args:
        run: Folder of the run, or its name in runs/.
        pictures: Image files, folders or globs, one or several.
        checkpoint: "best", "last" or a step.
        top: Number of classes for each image, the most probable first.
        views: "mirror" or "shifts" averages the outputs over several versions of each image.
        trust_code: Whether to run code of your own that the run names.

    Returns:
        A prediction for each image. For a file that is not an image it has an error instead of
        classes.

    Example:
        for prediction in paceline.predict("runs/smoke-1a2b3c4d", "photos/*.jpg", top=1):
            print(prediction.file, prediction.top)
    """
    from paceline.results.predict_files import Prediction, find_files

    patterns = [pictures] if isinstance(pictures, str | Path) else pictures
    files = find_files([str(pattern) for pattern in patterns])
    request = {"files": files, "checkpoint": checkpoint, "top": top, "views": views}
    found: list[Prediction] = []

    def listen(message: Message) -> None:
        if isinstance(message, Predictions):
            found.extend(Prediction.from_json(each) for each in message.predictions)

    in_a_worker("predict", existing_run(run), request, listen, trust_code)
    return found


def export(
    run: str | Path,
    out: str | Path,
    *,
    to: str,
    serving: bool | None = None,
    checkpoint: str = "best",
    views: Views = "none",
    force: bool = False,
    trust_code: bool = False,
) -> Path:
    """Export the model of a run, with its class names, and return the path of the export.

    Args:
        run: Folder of the run, or its name in runs/.
        out: File to write, or folder for a SavedModel.
        to: "keras", "savedmodel", "onnx" or "safetensors".
        serving: Whether to include the preprocessing and return probabilities; None does so in
            formats that can hold it.
        checkpoint: "best", "last" or a step.
        views: "mirror" or "shifts": the exported model averages over versions of each image.
        force: Whether to replace `out` if it exists.
        trust_code: Whether to run code of your own that the run names.

    Example:
        paceline.export("runs/smoke-1a2b3c4d", "model.onnx", to="onnx")
    """
    from paceline.results.export import run_export

    return Path(run_export(run, out, to, serving, checkpoint, views, force, trust_code)["out"])


def report(
    runs: str | Path | Sequence[str | Path], out: str | Path = "report.html", *, force: bool = False
) -> list[str]:
    """Write one self-contained page about one or several runs.

    Args:
        runs: Folders of runs, or their names in runs/.
        out: The HTML file to write.
        force: Whether to replace `out` if it exists.

    Returns:
        A line for each run that cannot be read and is left out.

    Example:
        paceline.report(["runs/smoke-1a2b3c4d", "runs/smoke-5e6f7a8b"], "both.html")
    """
    from paceline.results.report import write_report

    names = [runs] if isinstance(runs, str | Path) else runs
    return write_report([str(name) for name in names], Path(out), force)


def runs(folder: str | Path = "runs", *, sort: str = "changed") -> list[RunSummary]:
    """List the runs in a folder.

    Args:
        folder: Folder that contains the run folders.
        sort: "name", "state", "step", "accuracy", "loss", "speed" or "changed".

    Returns:
        A row for each run, the newest, best or fastest first. The note of an unfinished run is the
        command that continues it.

    Example:
        for row in paceline.runs(sort="accuracy"):
            print(row.name, row.state, row.accuracy)
    """
    from paceline.run_folder.listing import COLUMNS, list_runs

    if sort not in COLUMNS:
        raise UserError(f"sort is {sort!r}; it must be one of {', '.join(COLUMNS)}")
    if not is_remote(folder) and not Path(folder).is_dir():
        raise UserError(
            f"there is no folder {folder}; `paceline train` makes runs, or give another folder"
        )
    return list_runs(folder, sort)
