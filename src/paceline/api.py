"""Paceline as a library: `paceline.train(...)`, `evaluate` and `predict`. Work happens in a worker process, as on the command line,
because TensorFlow's settings must be made before it is loaded."""

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
from paceline.messages import Block, Message, Predictions
from paceline.places import launch
from paceline.results.in_worker import in_a_worker
from paceline.run_folder.folder import default_path, existing_run
from paceline.run_folder.storage import cache_folder, is_remote

if TYPE_CHECKING:
    import numpy as np

    from paceline.results.evaluate import Evaluation
    from paceline.results.predict import Prediction
    from paceline.worker.loop import Action


@dataclass(frozen=True)
class Result:
    """How a run ended; it draws itself in a notebook."""

    step: int
    finished: bool
    test_accuracy: float | None
    test_loss: float | None
    images_per_second: float | None
    state_sha256: str
    run_dir: str

    @property
    def history(self) -> Any:
        """The records of metrics.jsonl: a DataFrame with a row for each block, or a list of dictionaries where there is no pandas."""
        records = existing_run(self.run_dir, checkpoints=False).read_metrics()
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
    data: tuple[np.ndarray, np.ndarray] | None = None,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    classes: Sequence[str] | None = None,
    actions: Sequence[Action] = (),
    place: Place | None = None,
    run: Run | None = None,
    progress: bool = True,
) -> Result:
    """Train an experiment, or the recipe of that name, or go on with its unfinished run.

    `data` and `test` are (images, labels): uint8 [n, height, width(, channels)] and integers from 0. Each of `actions` is called here, in
    this process, with (step, metrics) after every block and every evaluation; one that raises `StopIteration` stops the run as an
    interruption would, and any other error ends it, after a checkpoint.
    """
    name = experiment if isinstance(experiment, str) else "custom"
    chosen = get_recipe(experiment) if isinstance(experiment, str) else experiment
    run = run or Run()
    if data is not None:
        from paceline.data.sources.arrays import save_arrays_by_digest

        root = Path(run.run_dir).parent if run.run_dir else Path("runs")
        root = cache_folder() / "data" if is_remote(run.run_dir) else root
        folder = save_arrays_by_digest(root, data, test, classes)
        chosen = replace(chosen, data=replace(chosen.data, source="arrays", dir=str(folder)))
    if not run.run_dir:
        run = replace(run, run_dir=str(default_path(name, chosen)))
    return _run(Job(chosen, place or Place(), run), actions, progress)


def _run(job: Job, actions: Sequence[Action], progress: bool) -> Result:
    from contextlib import ExitStack

    from paceline.cli.progress import Progress

    with ExitStack() as stack:
        show = stack.enter_context(Progress()).handle if progress else lambda message: None

        def listen(message: Message) -> None:
            show(message)
            if isinstance(message, Block | messages.Evaluation):
                for action in actions:
                    action(message.step, message.metrics)

        outcome = launch(job, listen)
    return Result(**{name: outcome[name] for name in Result.__dataclass_fields__})


def evaluate(
    run: str | Path, *, checkpoint: str = "best", data_dir: str = "", split: str = "test"
) -> Evaluation:
    """Evaluate a run's best or last checkpoint, or that of a step, on its test or validation split: the numbers of the training's own
    evaluation, bit for bit, and what the model said of each example. `data_dir` is where the data lie now."""
    import numpy as np

    from paceline.results.evaluate import Evaluation

    with tempfile.TemporaryDirectory(prefix="paceline-eval-") as folder:
        file = str(Path(folder, "examples.npz"))
        request = {"checkpoint": checkpoint, "data_dir": data_dir, "split": split, "examples": file}
        outcome = in_a_worker("evaluate", existing_run(run), request)
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
) -> list[Prediction]:
    """What a run's model says of pictures: files, folders or globs, of any size and usual format. One that is no picture has an error
    instead of classes. For bytes, and for many calls, there is `load_predictor`."""
    from paceline.results.predict import Prediction, find_files

    patterns = [pictures] if isinstance(pictures, str | Path) else pictures
    request = {
        "files": find_files([str(pattern) for pattern in patterns]),
        "checkpoint": checkpoint,
        "top": top,
    }
    found: list[Prediction] = []

    def listen(message: Message) -> None:
        if isinstance(message, Predictions):
            found.extend(Prediction.from_json(each) for each in message.predictions)

    in_a_worker("predict", existing_run(run), request, listen)
    return found
