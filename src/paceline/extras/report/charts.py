"""Computes the coordinates of a chart; `templates/chart.html` writes them as SVG.

Lines differ in dashes, marks and the name at their end, so that nobody needs the colors. Colors
are classes of the page's style (`s0` to `s7`), which follow its light and dark schemes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from paceline.extras.report.run_data import Points

WIDTH, HEIGHT = 440, 250
LEFT, TOP, BOTTOM = 46, 14, 34
"""Margins of the plot inside the drawing; the left one grows with the texts of its axis."""
NAME_HEIGHT = 12
CHARACTER = 6.8
"""Width of a character of an axis; digits are wider than most letters."""
MAX_POINTS = 240
"""Longer curves are averaged to this many points: a chart has no more pixels on any screen."""
MAX_MARKS = 24
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2", "1 4", "10 2 4 2")
MARK_SHAPES = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
    "M-3 -3h6v6h-6z",
    "M0 -4l4 4l-4 4l-4 -4z",
    "M0 -4l4 7h-8z",
)


@dataclass(frozen=True)
class Line:
    """A curve of a chart; `style` chooses how it looks, `marked` draws a mark at its points."""

    name: str
    points: Points
    style: int
    marked: bool = False


class Chart:
    """A chart with its parts in SVG units. If nothing was measured, `lines` is empty.

    Args:
        show: Returns a value as text.
        most: Values are from 0 to this, and so is the axis.
        events: Vertical lines with a tooltip: (x, text).
    """

    def __init__(
        self,
        title: str,
        lines: Sequence[Line],
        x_title: str,
        show: Callable[[float], str],
        *,
        from_zero: bool = False,
        most: float = math.inf,
        events: Sequence[tuple[float, str]] = (),
    ) -> None:
        self.title, self.x_title, self._show = title, x_title, show
        finite = [(line, [each for each in line.points if isfinite(each[1])]) for line in lines]
        drawn = [replace(line, points=thin(points)) for line, points in finite if points]
        self.lines: list[tuple[Line, str, list[tuple[float, float, str]]]] = []
        """Each line with its path, and its marks as (x, y, tooltip)."""
        if not drawn:
            return
        ys = [y for line in drawn for _, y in line.points]
        xs = [x for line in drawn for x, _ in line.points] + [x for x, _ in events]
        found = nice_ticks(0.0 if from_zero else min(ys), max(ys))
        levels = [tick for tick in found if most == math.inf or 0 <= tick <= most]
        first, last = min(0.0, *xs), max(xs)
        self.left = max(LEFT, round(8 + CHARACTER * max(len(show(tick)) for tick in levels)))
        names = 14 + 7 * max(len(line.name) for line in drawn)
        self.right = WIDTH - max(names, round(4 + CHARACTER / 2 * len(_short(last))))
        self._x = _axis(first, last, self.left, self.right)
        self._y = _axis(levels[0], levels[-1], HEIGHT - BOTTOM, TOP)
        self.levels = [(self._y(tick), show(tick)) for tick in levels]
        columns = [tick for tick in nice_ticks(first, last) if first <= tick <= last]
        self.columns = [(self._x(tick), _short(tick)) for tick in columns]
        self.events = [(self._x(x), text) for x, text in events]
        self.lines = [(line, self._path(line), self._marks(line)) for line in drawn]

    def description(self) -> str:
        """Describe in words where each line begins and ends."""
        show, title = self._show, self.title
        ends = [
            f"{line.name or title}: from {show(line.points[0][1])} to {show(line.points[-1][1])}"
            for line, _, _ in self.lines
        ]
        return f"{title} by {self.x_title}. {'; '.join(ends)}."

    def names(self) -> list[tuple[float, float, Line]]:
        """Return a position for each name next to the end of its line, below the one above it."""
        ends = [(*self._positions(line)[-1], line) for line, _, _ in self.lines if line.name]
        placed, lowest = [], -math.inf
        for rank, (x, y, line) in enumerate(sorted(ends, key=lambda end: end[1])):
            below = len(ends) - 1 - rank
            lowest = max(min(y, HEIGHT - BOTTOM - NAME_HEIGHT * below), lowest + NAME_HEIGHT)
            placed.append((x, lowest, line))
        return placed

    def _positions(self, line: Line) -> Points:
        return [(self._x(x), self._y(y)) for x, y in line.points]

    def _path(self, line: Line) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self._positions(line))

    def _marks(self, line: Line) -> list[tuple[float, float, str]]:
        if not line.marked and len(line.points) > 1:
            return []
        chosen = slice(None, None, -math.ceil(len(line.points) / MAX_MARKS))  # with the last
        pairs = zip(self._positions(line)[chosen], line.points[chosen], strict=True)
        before = f"{line.name} {self.x_title}".strip()
        return [(*at, f"{before} {_short(x)}: {self._show(y)}") for at, (x, y) in pairs]


def _axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Map the values from `low` to `high` to the coordinates from `start` to `end`."""
    return lambda value: start + (value - low) / ((high - low) or 1) * (end - start)


def thin(points: Points, most: int = MAX_POINTS) -> Points:
    """Return at most that many points: the means of neighbors, and the last point as it is."""
    if len(points) <= most:
        return points
    groups = np.array_split(np.array(points[:-1]), most - 1)
    return [(float(x), float(y)) for x, y in (group.mean(axis=0) for group in groups)] + points[-1:]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round values from at or below `low` to at or above `high`."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-3):
        low, high = (low - 0.5, low + 0.5) if low else (0.0, 1.0)
    rough = (high - low) / count
    power = math.floor(math.log10(rough))
    unit = 10.0**power
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 2 - power) for i in range(first, last + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"
