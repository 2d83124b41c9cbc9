"""Whether a run folder belongs to what is to be trained now, and whether its records are sound."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json, Range, diff, from_json
from paceline.storage.files import plain, sealed, write_json
from paceline.versions import library_versions

if TYPE_CHECKING:
    from paceline.run_folder.folder import RunFolder

Count = Annotated[int, Range(1)]
Three = tuple[float, float, float]


@dataclass(frozen=True)
class Facts:
    """What config.json says about the data."""

    train: Count = 1
    test: Count = 1
    validation: Count = 1
    classes: tuple[str, ...] = ()
    image_shape: Annotated[tuple[int, int, int] | None, Range(1, 2**14)] = None
    mean: Three = (1.0, 1.0, 1.0)
    std: Three = (1.0, 1.0, 1.0)
    scaling: Literal["mean_std", "bgr_mean"] = "mean_std"
    class_weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class StoredResult:
    """What result.json says."""

    finished: bool
    step: Annotated[int, Range(0, 1e15)] = 0
    test_accuracy: float | None = None
    test_loss: float | None = None
    images_per_second: float | None = None
    state_sha256: str = ""
    error: str = ""


def check_types(kind: type, values: Json, path: Path, advice: str) -> Json:
    """Return the values; raise UserError if those that `kind` has do not fit it."""
    names = {field.name for field in fields(kind)}
    try:
        from_json(kind, {name: value for name, value in values.items() if name in names})
    except (UserError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}; {advice}") from error
    return values


def check_same_run(
    run: RunFolder, experiment: Experiment, data_facts: Json, kernels: str, code: dict[str, str]
) -> list[str]:
    """Return which libraries have changed since a run began; raise UserError if anything else has.

    Only a longer training that repeats every step of the run may take its place. `code` has digests
    of the user's own functions.
    """
    where, config, old = run.where, run.config(), run.kernels()
    if kernels != old:
        from paceline.kernels.library import why_unavailable

        reason = why_unavailable() if old == "own" else ""
        advice = f"--kernels own cannot be used: {reason}" if reason else f"pass --kernels {old}"
        raise UserError(
            f"{where} was trained with --kernels {old}; --kernels {kernels} "
            f"gives different bits; {advice}, or use another --run-dir"
        )
    extends = _check_experiment(run, experiment)
    if changed := diff(run.data_facts(), plain(data_facts)):
        lines = [line.replace(": ", " ", 1) for line in changed]
        raise UserError(
            f"{where} cannot continue, the data is not the same: {_short(lines)}; "
            "use another --run-dir"
        )
    for name, digest in code.items():
        if config["code"].get(name) != digest:
            raise UserError(
                f"{where} cannot continue, the code of {name} is not the same as when the run "
                "began; restore it, or use another --run-dir"
            )
    if extends:
        run.write_result({"finished": False})  # first: a crash must not leave it finished
        config |= {"experiment": experiment.to_json()}
        write_json(run.path / "config.json", sealed(config))
    return diff(config["versions"], library_versions())


def _check_experiment(run: RunFolder, experiment: Experiment) -> bool:
    """Return whether the experiment extends the run's; raise UserError if it differs otherwise."""
    changed = run.experiment().changes_to(experiment)
    if not changed or _extends(run, experiment):
        return bool(changed)
    advice = "use another --run-dir, or the old settings to resume"
    if all(line.startswith(("epochs: ", "steps: ")) for line in changed):
        advice = "its learning rates depend on its end, so it cannot be extended; start from its "
        advice += f"weights in another --run-dir: --model.init-from {run.where}"
    found = f"{run.where} is the run of a different experiment: {_short(changed)}"
    raise UserError(f"{found}; {advice}")


def _extends(run: RunFolder, experiment: Experiment) -> bool:
    """Return whether a longer training repeats every step of the run."""
    from paceline.experiment.plan import build_plan
    from paceline.experiment.schedule import rates_table

    old, size = run.experiment(), run.data_facts()["train"]
    longer = replace(old, epochs=experiment.epochs, steps=experiment.steps)
    fixed = experiment.sync.method != "gradients" or experiment.early_stopping.patience
    plans = build_plan(old, size), build_plan(experiment, size)
    steps = plans[0].total_steps
    if fixed or longer.changes_to(experiment) or plans[1].total_steps <= steps:
        return False
    past, repeated = (rates_table(experiment, plan, 0, steps) for plan in plans)
    return np.array_equal(past, repeated)


def _short(lines: list[str], most: int = 5) -> str:
    shown = [line if len(line) <= 120 else line[:117] + "..." for line in lines[:most]]
    return ", ".join(shown) + (f" and {len(lines) - most} more" if len(lines) > most else "")
