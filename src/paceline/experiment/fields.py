"""Fields of frozen dataclasses: their limits, the checks of their values, and JSON.

It knows dataclasses in general. A field's type and its `Range` say what is allowed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.errors import UserError, did_you_mean

T = TypeVar("T")

MOST = 2**31 - 1
"""Larger counts are mistakes: they need memory or time without bound, or do not fit an int32."""
LARGEST = 1e300
"""Larger numbers count as infinite."""


@dataclass(frozen=True)
class Range:
    """The numbers that a field allows, as `Annotated[int, Range(1, 65_536)]`.

    For a tuple, it is the range of each number.
    """

    lowest: float
    highest: float = MOST
    excludes_lowest: bool = False
    excludes_highest: bool = False

    def __contains__(self, number: float) -> bool:
        """Return whether a number is allowed."""
        above = self.lowest < number or (number == self.lowest and not self.excludes_lowest)
        below = number < self.highest or (number == self.highest and not self.excludes_highest)
        return above and below

    def __str__(self) -> str:
        """Return what is allowed, for messages."""
        low = f"above {self.lowest:,}" if self.excludes_lowest else f"{self.lowest:,}"
        if self.highest in (MOST, math.inf):
            return low if self.excludes_lowest else f"{low} or more"
        if self.excludes_lowest:
            return f"{low} and at most {self.highest:,}"
        return f"{low} to {'below ' * self.excludes_highest}{self.highest:,}"


def from_json(kind: type[T], values: Any) -> T:
    """Rebuild a dataclass from plain containers, and check its fields.

    An unknown field is an error. A missing field gets its default.
    """
    made: T = _rebuild(kind, values, "")
    check_fields(made)
    return made


def _rebuild(hint: Any, values: Any, name: str) -> Any:
    kind = _kind_of(hint, values)
    if dataclasses.is_dataclass(kind):
        return _rebuild_object(kind, values, name)
    if not isinstance(values, list):
        return values
    each = get_args(kind)[0] if get_origin(kind) is tuple else None
    return tuple(_rebuild(each, item, name) for item in values)


def _kind_of(hint: Any, values: Any) -> Any:
    """Return the type to rebuild. Of several dataclasses, it is the one whose `kind` fits."""
    first, *others = _alternatives(hint)
    for kind in others if isinstance(values, dict) else ():
        if getattr(kind, "kind", None) == values.get("kind"):
            return kind
    return None if values is None and NoneType in others else first


def _rebuild_object(kind: Any, values: Any, name: str) -> Any:
    if isinstance(values, kind):
        return values
    prefix = f"{name}." if name else ""
    if not isinstance(values, dict):
        raise UserError(f"{name} is {_short(values)}; it must be an object")
    hints = _hints(kind)
    for key in values:
        if key not in hints:
            known = did_you_mean(key, list(hints))
            raise UserError(f"unknown field {prefix + key!r} in the experiment; {known}")
    made = {key: _rebuild(hints[key], value, prefix + key) for key, value in values.items()}
    try:
        return kind(**made)
    except TypeError as error:  # a field without a default is missing
        raise UserError(f"{name or kind.__name__}: {error}") from None


def to_json(value: Any) -> Any:
    """Return plain containers. A whole number in a field of floats becomes a float."""
    if not dataclasses.is_dataclass(value):
        return [to_json(item) for item in value] if isinstance(value, tuple) else value
    hints = _hints_of(value)
    return {
        item.name: _with_floats(hints[item.name], to_json(getattr(value, item.name)))
        for item in dataclasses.fields(value)
    }


def _with_floats(hint: Any, value: Any) -> Any:
    kinds = [each for kind in _alternatives(hint) for each in (kind, *get_args(kind))]
    if float not in kinds or isinstance(value, str | NoneType):
        return value
    return [float(each) for each in value] if isinstance(value, list) else float(value)


def check_fields(value: Any, prefix: str = "") -> None:
    """Check that every field has its type, is finite, and is in its range or among its choices."""
    hints = _hints_of(value)
    for item in dataclasses.fields(value):
        own, hint, name = getattr(value, item.name), hints[item.name], prefix + item.name
        kinds = _alternatives(hint)
        if dataclasses.is_dataclass(own) and type(own) in kinds:
            check_fields(own, f"{name}.")
            continue
        flag = name.replace("_", "-")
        if not any(_fits(kind, own) for kind in kinds):
            wanted = ", or ".join(_describe(kind) for kind in kinds if kind is not NoneType)
            raise UserError(f"{flag} is {_short(own)}; it must be {wanted}")
        for each in own if isinstance(own, tuple) else (own,):
            if dataclasses.is_dataclass(each):
                check_fields(each, f"{name}.")
            elif isinstance(each, int | float):
                _check_number(flag, own, each, hint)


def _check_number(flag: str, value: Any, number: float, hint: Any) -> None:
    if not abs(number) < LARGEST:  # NaN is not
        given = _short(number) if isinstance(number, float) else f"above {LARGEST:g}"
        raise UserError(f"{flag} is {given}; it must be a finite number")
    for limit in getattr(hint, "__metadata__", ()):
        if isinstance(limit, Range) and number not in limit:
            what = "numbers, each " if isinstance(value, tuple) else ""
            raise UserError(f"{flag} is {_short(value)}; it must be {what}{limit}")


def _hints_of(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    return _hints(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types that a field may have: two for `tuple[float, ...] | Literal["auto"]`."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)


def _fits(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(value is each or value == each for each in get_args(kind))
    if get_origin(kind) is tuple:
        each, *others = get_args(kind)
        count = None if others == [Ellipsis] else 1 + len(others)
        fits = isinstance(value, tuple) and count in (None, len(value))
        return fits and all(_fits(each, item) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind)


_MANY = {int: "whole numbers", float: "numbers", str: "texts"}


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        choices = [repr(each) for each in get_args(kind)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if get_origin(kind) is tuple:
        each, *others = get_args(kind)
        count = "" if others == [Ellipsis] else f"{1 + len(others)} "
        return f"{count}{_MANY[each] if each in _MANY else _describe(each)}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(kind, f"a {getattr(kind, '__name__', kind)}")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a very large number"
    return text if len(text) <= 60 else text[:57] + "..."
