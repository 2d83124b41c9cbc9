"""The settings that a search tries: parses `--over` and draws the settings of each trial.

They depend only on the space and the seed, not on Ray or on earlier trials. So a search that is
started again has the same trials, and a larger number of trials begins with the same ones.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json, flatten, to_json
from paceline.experiment.names import unknown_setting

EXAMPLES = "such as schedule.rate=0.05..0.8:log or optimizer.weight-decay=1e-4,5e-4"
DIGITS = 4
"""Significant digits of a drawn number, so that a person can type it."""

Settings = Json
"""Names of fields with dots and underscores, and their values."""


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, integers if both are."""

    low: float
    high: float
    log: bool = False

    def at(self, fraction: float) -> float:
        """Return the number at a fraction of the range, from 0 to below 1."""
        integers = isinstance(self.low, int)
        high = self.high + integers  # the last integer is as probable as the others
        if self.log:
            value = self.low * math.exp(fraction * math.log(high / self.low))
        else:
            value = self.low + fraction * (high - self.low)
        if integers:
            return min(int(value), int(self.high))
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Any, ...]

    def at(self, fraction: float) -> Any:
        """Return the value at a fraction of the list, from 0 to below 1."""
        return self.values[int(fraction * len(self.values))]


Space = dict[str, Interval | Choice]


def parse_over(words: Sequence[str], experiment: Experiment) -> Space:
    """Return the space of `NAME=LOW..HIGH[:log]` and `NAME=VALUE,VALUE...`."""
    given: dict[str, str] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not name:
            raise UserError(f"over is {word!r}; it must be NAME=VALUES, {EXAMPLES}")
        if name in given:
            raise UserError(f"over has {name} twice; give all its values at once, as {name}=A,B,C")
        given[name] = values
    return build_space(given, experiment)


def build_space(over: Mapping[str, str | Sequence[Any]], experiment: Experiment) -> Space:
    """Return the space of values by name: each a text as for `--over`, or a list of values."""
    if not over:
        raise UserError(f"over is empty; give the settings to search, {EXAMPLES}")
    known = flatten(to_json(experiment))
    space: Space = {}
    for given, values in over.items():
        name = given.replace("__", ".").replace("-", "_")
        if name not in known:
            raise unknown_setting(name, list(known))
        if isinstance(known[name], list):
            raise UserError(
                f"over has {given}, which has several values at once; a search varies settings "
                f"with one value, {EXAMPLES}"
            )
        if isinstance(values, str):
            space[name] = _parse(given, values, known[name])
        else:
            items = values.tolist() if hasattr(values, "tolist") else values
            space[name] = Choice(tuple(dict.fromkeys(items)))
    return space


def _parse(name: str, text: str, now: Any) -> Interval | Choice:
    """Return the values of a text. The experiment checks whether each is allowed."""
    said = f"over has {name}={text}"
    bounds, colon, scale = text.partition(":")
    is_range = ".." in text

    parse: Callable[[str], Any] = {str: str, float: float}.get(type(now), json.loads)
    try:
        words = bounds.split("..", 1) if is_range else text.split(",")
        values = [parse(word.strip()) for word in words]
    except ValueError as error:
        raise UserError(f"{said}; its values must be {type(now).__name__}s ({error})") from None
    if not is_range:
        return Choice(tuple(dict.fromkeys(values)))
    if isinstance(now, bool | str):
        raise UserError(f"{said}, but it is not a number; list its values, as {name}=A,B,C")
    low, high = values
    if not low < high:
        raise UserError(f"{said}; the first number must be below the second")
    if colon and (scale != "log" or low <= 0):
        raise UserError(f"{said}; after a range there can be :log, if it begins above 0")
    return Interval(low, high, bool(colon))


def draw(space: Space, count: int, seed: int) -> list[Settings]:
    """Return that many different settings at random, or all if there are fewer. The first n do not
    depend on how many are drawn."""
    drawn: list[Settings] = []
    for number in range(1000 * count):
        settings = {name: each.at(_fraction(seed, name, number)) for name, each in space.items()}
        if settings not in drawn:
            drawn.append(settings)
        if len(drawn) == count:
            break
    return drawn


def _fraction(seed: int, name: str, number: int) -> float:
    """Return a random number from 0 to below 1, always the same for the same arguments."""
    digest = hashlib.sha256(f"{seed}/{name}/{number}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
