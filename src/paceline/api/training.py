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
from paceline.api.progress import Progress
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.model import NETWORKS
from paceline.experiment.names import apply_settings
from paceline.experiment.recipes.table import get_recipe
from paceline.job import Job, Place, Run
from paceline.launch import launch
from paceline.messages import Block, Message
from paceline.run_folder.finding import default_path, existing_run
from paceline.storage.locations import cache_folder

if TYPE_CHECKING:
    import numpy as np

    from paceline.extras.keras_callbacks import KerasCallbacks
    from paceline.run_folder.user_actions import UserFunction

    Arrays = tuple[np.ndarray, np.ndarray]
    """Images and labels."""
    OwnData = Arrays | Callable[..., Any] | Mapping[str, Any] | str | Path
    OwnModel = Callable[..., Any] | Mapping[str, Any] | str
    """A function or a keras.Model, which can be called, too."""


@dataclass(frozen=True)
class Result:
    """The result of a training. A notebook shows it with its curves.

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
    place: Place | Mapping[str, Any] | None = None,
    run: Run | Mapping[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train an experiment, or continue its unfinished run.

    Every flag of `paceline train` is a setting here, under its name with underscores. Settings with
    a prefix are a dict, `optimizer=dict(weight_decay=1e-4)`, or have two underscores,
    `optimizer__weight_decay=1e-4`. They are checked like flags. `paceline train RECIPE --help`
    describes each.

    Args:
        experiment: The name of a recipe (`paceline.recipes()` lists them), or an Experiment.
        data: Training data instead of the recipe's: images and labels, uint8
            [n, height, width] or [n, height, width, channels] and integers from 0; a folder; a
            function that takes a paceline.Data and returns a paceline.Source; or a dict of
            settings.
        test: Test images and labels, in the same form. Without them, a tenth of `data` is held out.
        classes: Names of the classes of `data`.
        model: Your own model instead of the recipe's: a function `(image_shape, num_classes) ->
            keras.Model`, a Keras model (training starts from its weights; how it was compiled does
            not count), 'file.py:function', or a dict of settings. A function of a notebook is
            shipped as its source, with the imports, constants and functions that it uses.
        callbacks: Keras callbacks, called in this process: see `KerasCallbacks`.
            keras.callbacks.EarlyStopping becomes the setting early_stopping.
        actions: Each is called in this process with (step, metrics) after every block and every
            evaluation. If one raises StopIteration, the run stops as after an interruption. Any
            other error ends the run after a checkpoint. 'file.py:function' is called by the
            chief instead, as with the flag.
        place: Where the workers run, as a Place or a dict of its settings. The default is one
            process on this machine.
        run: The run folder and what is written to it, as a Run or a dict of its settings. By
            default the folder is runs/<recipe or data and model>-<hash of the experiment>.
        progress: Whether to show progress on the terminal.
        **settings: Further settings by name.
            Of the experiment: epochs, steps, global_batch_size, replicas, threads_per_replica,
            precision, kernels, evaluate_every, save_every, seed, and the dicts data, records,
            augment, scaling, model, loss, optimizer, average, schedule, sync, early_stopping.
            Of the place: on, workers, devices, cores, start_timeout, stall_timeout, max_restarts,
            min_workers, ps, and the dicts ray, spark.
            Of the run: run_dir, stop_at, keep, track, trust_code.

    Returns:
        The result: accuracy and loss on the test split, the digest of the state, the run folder.

    Raises:
        UserError: Something that you can correct, in one line.

    Example:
        result = paceline.train("smoke", epochs=2, optimizer=dict(weight_decay=1e-4), workers=2)
        print(result.test_accuracy, result.state_sha256)
    """
    settings = _with_early_stopping(settings, callbacks)
    base = get_recipe(experiment) if isinstance(experiment, str) else experiment
    if named := tuple(each for each in actions if isinstance(each, str)):
        settings["actions"] = named
    for part in (place, run):  # a dict of settings is the same as these settings
        settings |= part if isinstance(part, Mapping) else {}
    chosen, where, what = apply_settings(
        settings | own_settings(data, test, classes, model),
        base,
        place if isinstance(place, Place) else Place(),
        run if isinstance(run, Run) else Run(),
    )
    if not what.run_dir:
        name = experiment if isinstance(experiment, str) else run_name(chosen)
        what = replace(what, run_dir=str(default_path(name, chosen)))
    called = [each for each in actions if not isinstance(each, str)]
    outcome = _train(Job(chosen, where, what), called, _adapter(callbacks), progress)
    known = Result.__dataclass_fields__
    return Result(**{name: value for name, value in outcome.items() if name in known})


def own_settings(
    data: OwnData | None, test: Arrays | None, classes: Sequence[str] | None, model: OwnModel | None
) -> dict[str, Any]:
    """Return data and model of the caller as settings; what workers need is written to files."""
    settings: dict[str, Any] = {}
    if isinstance(data, Mapping):
        settings |= {f"data.{name}": value for name, value in data.items()}
    elif isinstance(data, str | Path):
        settings["data.dir"] = str(data)
    elif callable(data):
        settings["data.build"] = ship_function(data, "data")
    elif data is not None:
        settings |= {"data.source": "arrays", "data.dir": _save_arrays(data, test, classes)}
    if (test is not None or classes is not None) and settings.get("data.source") != "arrays":
        raise UserError("test and classes are for data that is given as images and labels")
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


def _with_early_stopping(settings: Mapping[str, Any], callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return the settings with Keras's EarlyStopping as one of them."""
    stops = [each for each in callbacks if _is_early_stopping(each)]
    if not stops:
        return dict(settings)
    from paceline.extras.keras_callbacks import early_stopping_of

    if len(stops) > 1 or any(name.startswith("early_stopping") for name in settings):
        raise UserError("early stopping was given twice; give one EarlyStopping or early_stopping")
    return {**settings, "early_stopping": early_stopping_of(stops[0])}


def _is_early_stopping(callback: Any) -> bool:
    return any(
        kind.__name__ == "EarlyStopping" and kind.__module__.startswith("keras")
        for kind in type(callback).__mro__
    )


def _adapter(callbacks: Sequence[Any]) -> KerasCallbacks | None:
    others = [callback for callback in callbacks if not _is_early_stopping(callback)]
    if not others:
        return None
    from paceline.extras.keras_callbacks import KerasCallbacks

    return KerasCallbacks(others)


def _train(
    job: Job, actions: Sequence[UserFunction], callbacks: KerasCallbacks | None, progress: bool
) -> dict[str, Any]:
    """Train, show progress, and call the actions and callbacks; return the result."""
    with ExitStack() as stack:
        show = stack.enter_context(Progress()).handle if progress else lambda message: None
        if callbacks:
            stack.enter_context(closing(callbacks))
        block: dict[str, Any] = {}

        def listen(message: Message) -> None:
            show(message)
            if isinstance(message, messages.Start) and callbacks:
                callbacks.start_at(message.first_step)
            if not isinstance(message, Block | messages.Evaluation):
                return
            for action in actions:
                action(message.step, message.metrics)
            block.update(message.metrics)
            if callbacks and not getattr(message, "evaluation_follows", False):
                callbacks(message.step, {**block})
                block.clear()

        return launch(job, listen)
