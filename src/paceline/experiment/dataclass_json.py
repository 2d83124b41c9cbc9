"""Frozen dataclasses as JSON: there and back, compared, and with their choices checked.

It knows dataclasses in general; the fields and the rules of an experiment are in other modules.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.errors import UserError, did_you_mean

T = TypeVar("T")

LARGEST = 1e300
"""Larger numbers count as infinite."""


def to_json(value: Any) -> Any:
    """Return plain containers. A whole number in a field of floats becomes a float."""
    if not dataclasses.is_dataclass(value):
        return list(value) if isinstance(value, tuple) else value
    hints, plain = get_type_hints(type(value)), {}
    for item in dataclasses.fields(value):
        own, hint = to_json(getattr(value, item.name)), hints[item.name]
        kind = _alternatives(hint)[0]
        holds_floats = kind is float or (get_origin(kind) is tuple and float in get_args(kind))
        if holds_floats and not isinstance(own, str):
            own = [float(each) for each in own] if isinstance(own, list) else float(own)
        plain[item.name] = own
    return plain


def from_json(kind: type[T], values: dict[str, Any], prefix: str = "") -> T:
    """Rebuild a dataclass. An unknown field is an error; a missing field gets its default.

    A value of another type than the field's is an error, too.
    """
    if not isinstance(values, dict):
        raise UserError(f"{prefix.rstrip('.')} is {_short(values)}; it must be an object")
    hints = get_type_hints(kind)
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            known = did_you_mean(key, list(hints))
            raise UserError(f"unknown field {prefix + key!r} in the experiment; {known}")
        if dataclasses.is_dataclass(hints[key]):
            value = from_json(hints[key], value, f"{prefix}{key}.")
        elif wanted := _misfit(hints[key], value):
            raise UserError(f"{prefix}{key} is {_short(value)}; it must be {wanted}")
        made[key] = tuple(value) if isinstance(value, list) else value
    return kind(**made)


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types that a field may have: two for `tuple[float, ...] | Literal["auto"]`."""
    return get_args(hint) if get_origin(hint) is Union else (hint,)


def _misfit(hint: Any, value: Any) -> str:
    """Return what a field must be if the value is not of its type; else nothing."""
    if get_origin(hint) is Union:
        numbers, words = get_args(hint)
        wanted = "" if isinstance(value, str) else _misfit(numbers, value)
        return wanted and f"{wanted}, or {' or '.join(map(repr, get_args(words)))}"
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        count = None if kinds[-1] is Ellipsis else len(kinds)
        fits = isinstance(value, list | tuple) and count in (None, len(value))
        if fits and not any(_misfit(kinds[0], item) for item in value):
            return ""
        return (
            f"a list of {count or 'any number'} values, each {_NAMES.get(kinds[0], 'of its kind')}"
        )
    if hint not in _NAMES or type(value) is hint or (hint is float and type(value) is int):
        return ""
    return _NAMES[hint]


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a very large number"
    return text if len(text) <= 60 else text[:57] + "..."


def check_choices(value: Any, prefix: str = "") -> None:
    """Check fields with a fixed set of values, and that numbers are finite.

    This is for objects made in Python or read from JSON: the command line checks choices itself.
    """
    hints = get_type_hints(type(value))
    for item in dataclasses.fields(value):
        own, hint, name = getattr(value, item.name), hints[item.name], prefix + item.name
        if dataclasses.is_dataclass(own):
            check_choices(own, f"{name}.")
        *numbers, words = _alternatives(hint)
        allowed = get_args(words) if get_origin(words) is Literal else (own,)
        if own not in allowed and not (numbers and isinstance(own, tuple)):
            wanted = "numbers, or" if numbers else "one of"
            choices = ", ".join(map(repr, allowed))
            raise UserError(f"{name} is {_short(own)}; it must be {wanted} {choices}")
        for each in own if isinstance(own, tuple) else (own,):
            if isinstance(each, int | float) and not abs(each) < LARGEST:
                given = _short(each) if isinstance(each, float) else f"above {LARGEST:g}"
                raise UserError(f"{name.replace('_', '-')} is {given}; it must be a finite number")


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
