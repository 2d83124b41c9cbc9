"""Fields of frozen dataclasses: their limits, the checks of their values, JSON, and differences.

It knows dataclasses in general. A field's type and its `Range` say what is allowed.
"""

import dataclasses
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.errors import UserError, did_you_mean

T = TypeVar("T")
Json = dict[str, Any]
"""An object as JSON holds it."""

MOST = 2**31 - 1
"""Larger counts are mistakes: they need memory or time without bound, or do not fit an int32."""
LARGEST = 1e300
"""Larger numbers count as infinite."""
_hints: Callable[[Any], Json] = cache(partial(get_type_hints, include_extras=True))


@dataclass(frozen=True)
class Range:
    """The numbers (in a tuple: each) that a field allows, as `Annotated[int, Range(1, 9)]`."""

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
        if self.excludes_lowest:
            end = "" if self.highest in (MOST, math.inf) else f" and at most {self.highest:,}"
            return f"above {self.lowest:,}{end}"
        if self.highest in (MOST, math.inf):
            return f"{self.lowest:,} or more"
        return f"{self.lowest:,} to {'below ' * self.excludes_highest}{self.highest:,}"


def from_json(kind: type[T], values: object) -> T:
    """Rebuild a dataclass from plain containers, and check its fields; unknown ones are errors."""
    made: T = _rebuild(kind, values, "")
    check_fields(made)
    return made


def _rebuild(hint: Any, values: Any, name: str) -> Any:
    kinds = _alternatives(hint)
    objects = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    if isinstance(values, list) and not objects:
        each = get_args(kinds[0])[0] if get_origin(kinds[0]) is tuple else None
        return tuple(_rebuild(each, item, name) for item in values)
    if not objects or (values is None and NoneType in kinds):
        return values
    if not isinstance(values, dict):
        raise UserError(f"{name} is {short(values)}; it must be an object")
    fitting = [kind for kind in objects if getattr(kind, "kind", None) == values.get("kind")]
    return _rebuild_object((fitting or objects)[0], values, name)


def _rebuild_object(kind: Any, values: Json, name: str) -> Any:
    prefix, hints = f"{name}." if name else "", _hints(kind)
    for key in values:
        if key not in hints:
            known = did_you_mean(key, hints)
            raise UserError(f"unknown field {prefix + key!r} in the experiment; {known}")
    made = {key: _rebuild(hints[key], value, prefix + key) for key, value in values.items()}
    try:
        return kind(**made)
    except TypeError as error:  # a field without a default is missing
        raise UserError(f"{name or kind.__name__}: {error}") from None


def to_json(value: object) -> Any:
    """Return plain containers. A whole number in a field of floats becomes a float."""
    return _plain(type(value), value)


def _plain(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        hints, names = _hints(type(value)), [item.name for item in dataclasses.fields(value)]
        return {name: _plain(hints[name], getattr(value, name)) for name in names}
    kinds = _alternatives(hint)
    if isinstance(value, tuple):
        each = get_args(kinds[0])[0] if get_origin(kinds[0]) is tuple else None
        return [_plain(each, item) for item in value]
    return float(value) if float in kinds and isinstance(value, int) else value


def flatten(values: Json, prefix: str = "") -> Json:
    """Return nested objects as one level, with names like those of flags: `schedule.rate`."""
    flat: Json = {}
    for key, value in values.items():
        name = prefix + key
        flat |= flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def diff(old: Json, new: Json, ignore: Collection[str] = ()) -> list[str]:
    """Return lines `field: old -> new`, without the fields whose dotted name is in `ignore`."""
    old, new = flatten(old), flatten(new)
    names = [name for name in sorted(old.keys() | new.keys()) if name not in ignore]
    pairs = [(name, old.get(name), new.get(name)) for name in names]
    return [f"{name}: {a!r} -> {b!r}" for name, a, b in pairs if a != b]


def check_fields(value: Any, prefix: str = "") -> None:
    """Check that every field has its type, is finite, and is in its range or among its choices."""
    hints = _hints(type(value))
    for item in dataclasses.fields(value):
        own, hint, name = getattr(value, item.name), hints[item.name], prefix + item.name
        kinds, flag = _alternatives(hint), name.replace("_", "-")
        if not any(_fits(kind, own) for kind in kinds):
            wanted = ", or ".join(_describe(kind) for kind in kinds if kind is not NoneType)
            raise UserError(f"{flag} is {short(own)}; it must be {wanted}")
        for each in own if isinstance(own, tuple) else (own,):
            if dataclasses.is_dataclass(each):
                check_fields(each, f"{name}.")
            elif isinstance(each, int | float):
                _check_number(flag, own, each, getattr(hint, "__metadata__", ()))


def _check_number(flag: str, value: object, number: float, limits: Collection[Range]) -> None:
    if not abs(number) < LARGEST:  # NaN is not
        given = short(number) if isinstance(number, float) else f"above {LARGEST:g}"
        raise UserError(f"{flag} is {given}; it must be a finite number")
    for limit in limits:
        if number not in limit:
            what = "numbers, each " if isinstance(value, tuple) else ""
            raise UserError(f"{flag} is {short(value)}; it must be {what}{limit}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types that a field may have: two for `tuple[float, ...] | Literal["auto"]`."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)


def _fits(kind: Any, value: object) -> bool:
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return value in parts
    if get_origin(kind) is tuple:
        fits = isinstance(value, tuple) and (Ellipsis in parts or len(value) == len(parts))
        return fits and all(_fits(parts[0], item) for item in value)  # type: ignore[attr-defined]
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else get_origin(kind) or kind)


_ONE = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_MANY = {int: "whole numbers", float: "numbers", str: "texts"}


def _describe(kind: Any) -> str:
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return "one of " * (len(parts) > 1) + ", ".join(map(repr, parts))
    if get_origin(kind) is tuple:
        count = "" if Ellipsis in parts else f"{len(parts)} "
        return count + (_MANY.get(parts[0]) or _describe(parts[0]))
    return _ONE.get(kind, f"a {getattr(kind, '__name__', kind)}")
