"""`paceline.train`: an experiment from a recipe and settings by name, trained in worker processes.

They are fresh processes, as on the command line, because TensorFlow's settings must be made before
it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import messages
from paceline.api.notebook_code import ship_function, ship_model
from paceline.api.progress import ProgressDisplay
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json
from paceline.experiment.model import NETWORKS
from paceline.experiment.names import from_recipe
from paceline.job import Job, Place, Run
from paceline.launch import launch
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import default_path
from paceline.storage.locations import cache_folder

if TYPE_CHECKING:
    import numpy as np

    from paceline.run_folder.user_actions import UserFunction

    Arrays = tuple[np.ndarray, np.ndarray]
    """Images and labels."""
    OwnData = Arrays | Callable[..., Any] | Mapping[str, Any] | str | Path
    OwnModel = Callable[..., Any] | Mapping[str, Any] | str
    """A function or a keras.Model, which can be called, too."""


@dataclass(frozen=True)
class Result:
    """The result of a training. In a notebook, it shows its curves.

    `evaluate`, `predict`, `export`, `report` and `load` take it in place of the name of a run.
    """

    step: int
    """Steps that were trained."""
    finished: bool
    """False if the training was stopped; the same call continues it."""
    test_accuracy: float | None
    test_loss: float | None
    images_per_second: float | None
    state_sha256: str
    """Digest of the whole state but its step. Two runs with the same digest have the same bits."""
    run_dir: str
    """Folder of the run."""
    evaluated_step: int | None = None
    """Step of the test accuracy, if training was stopped after it."""
    bits: str = ""
    """Where the same experiment gives the same bits: any CPU, or the same kind."""
    ended_early: bool = False
    """Whether early stopping ended it before its last step."""

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
        from paceline.extras.report.report_page import render_fragment
        from paceline.extras.report.run_data import read_run

        return render_fragment(read_run(existing_run(self.run_dir, checkpoints=False)))


def train(
    experiment: Experiment | str = "shapes",
    *,
    data: OwnData | None = None,
    test: Arrays | None = None,
    classes: Sequence[str] | None = None,
    model: OwnModel | None = None,
    callbacks: Sequence[Any] = (),
    actions: Sequence[UserFunction | str] = (),
    place: Place | None = None,
    run: Run | None = None,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train an experiment, or continue its unfinished run. See docs/python.md.

    Args:
        experiment: The name of a recipe (`paceline.recipes()` lists them), or an Experiment.
        data: Your images and labels, a folder, a function, or a dict of settings.
        test: Test images and labels. Without them, a tenth of `data` is held out.
        classes: Names of the classes of `data`.
        model: Your function, Keras model, 'file.py:function', or a dict of settings.
        callbacks: Keras callbacks, called in this process: see `KerasCallbacks`.
        actions: Functions, called with (step, metrics) after every block and every evaluation.
        place: Where the workers run. The default is one process on this machine.
        run: The run folder and what is written to it.
        progress: Whether to show progress on the terminal.
        **settings: Any flag of `paceline train` by its name, such as epochs and workers.

    Example:
        result = paceline.train("smoke", epochs=2, optimizer=dict(weight_decay=1e-4), workers=2)
        print(result.test_accuracy, result.state_sha256)
    """
    settings |= own_settings(data, test, classes, model)
    if named := tuple(each for each in actions if isinstance(each, str)):
        settings["actions"] = named  # called by the chief
    job = build_job(experiment, settings, place or Place(), run or Run())
    called = [each for each in actions if not isinstance(each, str)]
    outcome = _train(job, called, callbacks, progress)
    return Result(**{name: outcome[name] for name in Result.__annotations__ if name in outcome})


def build_job(experiment: Experiment | str, settings: Json, place: Place, run: Run) -> Job:
    """Return the job of a recipe or an experiment with settings changed by name."""
    chosen, where, what = from_recipe(experiment, settings, place, run)
    name = experiment if isinstance(experiment, str) else run_name(chosen)
    run_dir = what.run_dir or default_path(name, chosen)
    return Job(chosen, where, replace(what, run_dir=run_dir))


def own_settings(
    data: OwnData | None, test: Arrays | None, classes: Sequence[str] | None, model: OwnModel | None
) -> Json:
    """Return data and model of the caller as settings; what workers need is written to files."""
    settings: Json = {}
    if isinstance(data, Mapping):
        settings |= {f"data.{name}": value for name, value in data.items()}
    elif isinstance(data, str | Path):
        settings["data.dir"] = str(data)
    elif callable(data):
        settings["data.build"] = ship_function(data, "data")
    elif data is not None:
        settings |= {"data.source": "arrays", "data.dir": _save_arrays(data, test, classes)}
    if (test is not None or classes is not None) and settings.get("data.source") != "arrays":
        raise UserError("test and classes need data=(images, labels)")
    if isinstance(model, Mapping):
        settings |= {f"model.{name}": value for name, value in model.items()}
    elif isinstance(model, str):
        settings["model.build"] = model
    elif model is not None:
        is_plain = not hasattr(model, "save") and callable(model)
        settings["model.build"] = ship_function(model, "model") if is_plain else ship_model(model)
    return settings


def _save_arrays(data: Any, test: Any, classes: Sequence[str] | None) -> str:
    """Write images and labels to the cache, where workers can read them; return the folder."""
    from paceline.formats.arrays import save_arrays_by_digest

    if not isinstance(data, tuple | list) or len(data) != 2:
        raise UserError(
            f"data is a {type(data).__name__}; it must be (images, labels), a folder, a function "
            "or a dict of settings"
        )
    return str(save_arrays_by_digest(cache_folder() / "data", (data[0], data[1]), test, classes))


def run_name(experiment: Experiment) -> str:
    """Return a name for the run of an experiment without a recipe: its data and its model."""
    data, model = experiment.data, experiment.model
    own = data.build.rpartition(":")[2] or (data.source if data.source != "auto" else "")
    network = NETWORKS[model.layout].format(depth=model.depth).lower().replace("-", "")
    built = Path(model.build.rpartition(":")[2]).stem
    return f"{own or Path(data.dir).name}-{built or network}"


def _train(
    job: Job, actions: Sequence[UserFunction], callbacks: Sequence[Any], progress: bool
) -> Json:
    """Train, show progress, and call the actions and callbacks; return the result."""
    with ExitStack() as stack:
        show = stack.enter_context(ProgressDisplay()).handle if progress else lambda message: None
        adapter, block = None, Json()
        if callbacks:
            from paceline.extras.keras_callbacks import KerasCallbacks

            adapter = stack.enter_context(closing(KerasCallbacks(callbacks)))

        def listen(message: messages.Message) -> None:
            show(message)
            if isinstance(message, messages.Start) and adapter:
                adapter.start_at(message.first_step)
            if not isinstance(message, messages.Block | messages.Evaluated):
                return
            for action in actions:
                action(message.step, message.metrics)
            block.update(message.metrics)
            if adapter and not getattr(message, "evaluation_follows", False):
                adapter(message.step, {**block})
                block.clear()

        return launch(job, listen)
