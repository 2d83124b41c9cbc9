"""Frozen dataclasses as JSON: there and back, compared, and with their choices checked.

It knows dataclasses in general; the fields and the rules of an experiment are in other modules.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from paceline.errors import UserError, did_you_mean

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """Return plain containers. A whole number in a field of floats becomes a float."""
    if not dataclasses.is_dataclass(value):
        return list(value) if isinstance(value, tuple) else value
    hints, plain = get_type_hints(type(value)), {}
    for item in dataclasses.fields(value):
        own, hint = to_json(getattr(value, item.name)), hints[item.name]
        if hint is float or (get_origin(hint) is tuple and float in get_args(hint)):
            own = [float(each) for each in own] if isinstance(own, list) else float(own)
        plain[item.name] = own
    return plain


def from_json(kind: type[T], values: dict[str, Any], prefix: str = "") -> T:
    """Rebuild a dataclass. An unknown field is an error; a missing field gets its default."""
    hints = get_type_hints(kind)
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            known = did_you_mean(key, list(hints))
            raise UserError(f"unknown field {prefix + key!r} in the experiment; {known}")
        if dataclasses.is_dataclass(hints[key]):
            value = from_json(hints[key], value, f"{prefix}{key}.")
        made[key] = tuple(value) if isinstance(value, list) else value
    return kind(**made)


def check_choices(value: Any, prefix: str = "") -> None:
    """Check fields with a fixed set of values, in objects made in Python or read from JSON.

    The command line checks them itself.
    """
    hints = get_type_hints(type(value))
    for item in dataclasses.fields(value):
        own, hint, name = getattr(value, item.name), hints[item.name], prefix + item.name
        if dataclasses.is_dataclass(own):
            check_choices(own, f"{name}.")
        elif get_origin(hint) is Literal and own not in get_args(hint):
            choices = ", ".join(map(repr, get_args(hint)))
            raise UserError(f"{name} is {own!r}; it must be one of {choices}")


def differences(
    old: dict[str, Any], new: dict[str, Any], prefix: str = "", everything: bool = False
) -> list[str]:
    """Return what differs between two experiments in JSON, as lines `field: old -> new`.

    `data.dir` and `kernels` do not count unless `everything` does: the run folder compares the data
    themselves, and the kernels that are really used.
    """
    lines = []
    for key in sorted(old.keys() | new.keys()):
        name, a, b = prefix + key, old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += differences(a, b, name + ".", everything)
        elif a != b and (everything or name not in ("data.dir", "kernels")):
            lines.append(f"{name}: {a!r} -> {b!r}")
    return lines


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested JSON as one level, with names like those of flags: `schedule.rate`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + key
        flat |= flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
