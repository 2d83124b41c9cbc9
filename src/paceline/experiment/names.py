"""Settings by name: what `paceline.train(..., epochs=2)` changes, checked like flags.

It owns the names that people know from other tools, and the hint for a name that is not known.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from paceline.errors import UserError
from paceline.experiment.diff import flatten
from paceline.experiment.fields import from_json, to_json

T = TypeVar("T")

ALIASES = {
    "lr": "schedule.rate",
    "learning-rate": "schedule.rate",
    "batch": "global-batch-size",
    "batch-size": "global-batch-size",
    "wd": "optimizer.weight-decay",
    "num-epochs": "epochs",
    "max-epochs": "epochs",
    "num-workers": "workers",
    "gpus": "replicas",
    "output": "run-dir",
    "output-dir": "run-dir",
    "data-dir": "data.dir",
    "patience": "early-stopping.patience",
}
"""Names that other tools give to what Paceline calls otherwise."""
UNNAMED = ("experiment", "place", "run", "options")
"""Parts of a training whose settings are flags without a prefix."""


def nearest_name(name: str, known: Sequence[str]) -> str:
    """Return the known name that was probably meant; empty if none is near.

    Names have dashes and dots, like flags. The nearest is the one of another tool's name, or one
    with the same last part, a similar one, or one with the same last word.
    """
    last = re.split(r"[.-]", name)[-1]
    near = [
        ALIASES.get(name, ""),
        *(each for each in known if each.endswith(f".{name}")),
        *difflib.get_close_matches(name, known, n=1),
        *(each for each in known if re.split(r"[.-]", each)[-1] == last),
    ]
    return next((each for each in near if each in known), "")


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their dotted names: `optimizer=dict(weight_decay=1e-4)`,
    `optimizer__weight_decay=1e-4` and `**{"optimizer.weight-decay": 1e-4}` are the same."""
    nested = {
        name: to_json(value) if dataclasses.is_dataclass(value) else value
        for name, value in settings.items()
    }
    return {
        name.replace("__", ".").replace("-", "_"): value for name, value in flatten(nested).items()
    }


def names_of(value: Any) -> list[str]:
    """Return the dotted names of all settings of a dataclass, as fields are spelled."""
    return list(flatten(to_json(value)))


def refuse_unknown(name: str, known: Sequence[str]) -> UserError:
    """Return the error for a setting that is not known."""
    flags = [each.replace("_", "-") for each in known]
    near = nearest_name(name.replace("_", "-"), flags).replace("-", "_")
    section = any(each.startswith(f"{name}.") for each in known)
    hint = f"did you mean {near!r}?" if near else "help(paceline.train) lists all"
    if section:
        hint = f"it has several settings: give a dict, such as {name}=dict(...)"
    return UserError(f"unknown setting {name!r}; {hint}")


def override(value: T, changes: Mapping[str, Any]) -> T:
    """Return a dataclass with some settings changed, by their dotted names, and checked."""
    plain = to_json(value)
    for name, new in changes.items():
        *sections, last = name.split(".")
        inner = plain
        for section in sections:
            inner = inner[section]
        inner[last] = _plain(new)
    return from_json(type(value), plain)


def _plain(value: Any) -> Any:
    """Return NumPy's numbers and arrays, and paths, as Python has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value) if hasattr(value, "__fspath__") else value


def changed_flags(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Return what differs between two dataclasses, as words of a command line.

    Sections of a command that flags do not name (experiment, place, run) add no prefix.
    """
    words: list[str] = []
    for item in dataclasses.fields(new):
        name = item.name.replace("_", "-")
        before, after = getattr(old, item.name), getattr(new, item.name)
        if dataclasses.is_dataclass(after):
            inner = "" if name in UNNAMED else f"{prefix}{name}."
            words += changed_flags(before, after, inner)
        elif before == after:
            continue
        elif isinstance(after, bool):
            words.append(f"--{prefix}{'' if after else 'no-'}{name}")
        else:
            values = after if isinstance(after, tuple) else (after,)
            words += [f"--{prefix}{name}", *map(str, values)]
    return words
