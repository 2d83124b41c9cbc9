"""A table of runs: how far each is, how good, and for an unfinished one the command that goes on with it. Reads only."""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config.experiment import Experiment
from paceline.config.recipes import RECIPES
from paceline.errors import UserError
from paceline.run_folder.folder import RunFolder, all_runs, default_path
from paceline.run_folder.storage import is_remote


@dataclass(frozen=True)
class Row:
    """One run. `state` is finished, unfinished, running or damaged; `note` is how to resume, or what is damaged."""

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


def table_of_runs(folder: Path, sort: str = "changed") -> list[Row]:
    """All runs in `folder`, by a column: words and losses rising, other numbers falling, unknown values last."""
    rows = [_row(run, folder) for run in all_runs(folder)]
    falling = sort in ("step", "accuracy", "speed", "changed")

    def key(row: Row) -> tuple[bool, Any]:
        value = getattr(row, sort)
        return (value is None, 0 if value is None else -value if falling else value)

    return sorted(rows, key=key)


def _row(run: RunFolder, folder: Path) -> Row:
    changed = max(file.stat().st_mtime for file in run.path.iterdir())
    try:
        result, metrics, experiment = run.read_result() or {}, run.metrics.read(), run.experiment()
    except UserError as error:
        return Row(run.path.name, "damaged", changed=changed, note=str(error))
    last = metrics[-1] if metrics else {}
    measured: dict[str, Any] = next(
        (record for record in reversed(metrics) if "test_accuracy" in record), {}
    )
    state = "finished" if result.get("finished") else "running" if run.is_locked() else "unfinished"
    return Row(
        run.path.name,
        state,
        last.get("step", result.get("step", 0)),
        measured.get("test_accuracy"),
        measured.get("test_loss"),
        result.get("images_per_second") or last.get("images_per_second"),
        changed,
        f"paceline {shlex.join(resume_command(run.where, experiment))}"
        if state == "unfinished"
        else "",
    )


def resume_command(where: str | Path, experiment: Experiment) -> list[str]:
    """`train ...` that goes on with a run: its recipe, by the name of its folder or else the nearest, with what differs as flags.
    Where its workers ran is not noted in the folder, so the command runs here."""
    named = re.fullmatch(r"(.+)-[0-9a-f]{8}", Path(where).name)
    recipe = (
        named[1]
        if named and named[1] in RECIPES
        else min(RECIPES, key=lambda name: len(_flags(RECIPES[name](), experiment)))
    )
    flags = _flags(RECIPES[recipe](), experiment)
    own_place = (
        not is_remote(where)
        and Path(default_path(recipe, experiment)).resolve() == Path(where).resolve()
    )
    return ["train", recipe, *flags, *([] if own_place else ["--run-dir", str(where)])]


def _flags(old: Any, new: Any, prefix: str = "") -> list[str]:
    """What differs between two experiments, as words of a command line."""
    words: list[str] = []
    for item in dataclasses.fields(new):
        name, a, b = item.name.replace("_", "-"), getattr(old, item.name), getattr(new, item.name)
        if dataclasses.is_dataclass(b):
            words += _flags(a, b, f"{prefix}{name}.")
        elif isinstance(b, bool):
            words += [f"--{prefix}{'' if b else 'no-'}{name}"] * (a != b)
        elif a != b:
            words += [f"--{prefix}{name}", *(map(str, b) if isinstance(b, tuple) else [str(b)])]
    return words
