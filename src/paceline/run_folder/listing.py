"""The list of runs: progress, accuracy and speed of each, and how to resume an unfinished one."""

import dataclasses
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.names import changed_flags
from paceline.experiment.recipes.table import RECIPES, get_recipe
from paceline.run_folder.finding import all_runs
from paceline.run_folder.folder import RunFolder, default_path
from paceline.storage.files import explained
from paceline.storage.locations import is_remote


@dataclass(frozen=True)
class RunSummary:
    """One run. `state` is finished, unfinished, running, damaged, or unreadable if the disk fails.

    For an unfinished run, `step` is the last completed step and `note` the command that resumes it.
    For a damaged or unreadable run, `note` is the reason.
    """

    name: str
    state: str
    step: int | None = None
    accuracy: float | None = None
    loss: float | None = None
    speed: float | None = None
    changed: float = 0.0
    """Seconds since 1970."""
    note: str = ""


COLUMNS = ("name", "state", "step", "accuracy", "loss", "speed", "changed")


def list_runs(folder: str | Path, sort: str = "changed") -> list[RunSummary]:
    """Return all runs in `folder`, sorted by a column. Words and losses rise, other numbers fall,
    and unknown values are last."""

    def key(run: RunSummary) -> tuple[bool, Any]:
        value = getattr(run, sort) or 0.0
        falls = sort in ("step", "accuracy", "speed", "changed")
        return getattr(run, sort) is None, -value if falls else value

    return sorted((_summary(run) for run in all_runs(folder)), key=key)


def _summary(run: RunFolder) -> RunSummary:
    changed, name = 0.0, Path(run.where).name
    try:
        with explained("read", run.path):
            changed = run.path.stat().st_mtime
            if run.metrics.path.exists():  # lines are appended to it
                changed = max(changed, run.metrics.path.stat().st_mtime)
        result = run.read_result() or {}
        metrics = run.metrics.read()
        experiment = run.experiment()
    except UserError as error:
        state = "unreadable" if isinstance(error, PassingFault) else "damaged"
        return RunSummary(name, state, changed=changed, note=str(error))
    last = metrics[-1] if metrics else {}
    evaluated = [record for record in metrics if "test_accuracy" in record] or [{}]
    state, note = "finished", ""
    if not result.get("finished"):
        state = "running" if run.is_locked() else "unfinished"
    if state == "unfinished":
        note = f"paceline {shlex.join(resume_command(run.where, with_data(run, experiment)))}"
    return RunSummary(
        name,
        state,
        last.get("step", result.get("step", 0)),
        evaluated[-1].get("test_accuracy"),
        evaluated[-1].get("test_loss"),
        result.get("images_per_second") or last.get("images_per_second"),
        changed,
        note,
    )


def with_data(run: RunFolder, experiment: Experiment) -> Experiment:
    """Make data.dir absolute unless it already resolves to the run's data."""
    data, stored = experiment.data, run.data_dir()
    if not data.dir or os.path.abspath(data.dir) == stored:
        return experiment
    return dataclasses.replace(experiment, data=dataclasses.replace(data, dir=stored))


def resume_command(where: str | Path, experiment: Experiment) -> list[str]:
    """Return the words of the `train` command that resumes a run here, with flags that differ. The
    recipe is the one in the folder's name, or else the nearest."""
    command = train_command(experiment, named_recipe(where))
    default = Path(default_path(command[1], experiment))
    if is_remote(where) or default.resolve() != Path(where).resolve():
        command += ["--run-dir", str(where)]
    return command


def named_recipe(where: str | Path) -> str:
    """Return the recipe in the name of a run's folder; empty if there is none."""
    named = re.fullmatch(r"(.+)-[0-9a-f]{8}", Path(where).name)
    return named[1] if named else ""


def train_command(experiment: Experiment, recipe: str = "") -> list[str]:
    """Return the words of the command that trains an experiment, by this recipe or the nearest."""

    def flags(name: str) -> list[str]:
        return changed_flags(get_recipe(name, experiment.data.dir), experiment)

    if recipe not in RECIPES:
        recipe = min(RECIPES, key=lambda name: len(flags(name)))
    return ["train", recipe, *flags(recipe)]
