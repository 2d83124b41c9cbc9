"""Computes the coordinates of a chart; `templates/chart.html` writes them as SVG.

Lines differ in dashes, marks and the name at their end, so that nobody needs the colors. Colors
are classes of the page's style (`s0` to `s7`), which follow its light and dark schemes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Chart:
    title: str
    lines: Sequence[Line]
    x_title: str
    show: Callable[[float], str]
    """Returns a value as text."""
    log: bool = False
    """Use a logarithmic scale if the values differ by more than a factor of five."""
    log_x: bool = False
    """Use a logarithmic scale for x."""
    from_zero: bool = False
    most: float = math.inf
    """Values are from 0 to this, and so is the axis."""
    events: Sequence[tuple[float, str]] = ()
    """Vertical lines with a text: (x, text)."""


@dataclass(frozen=True)
class _Axis:
    """Maps the values from `low` to `high` to the coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high, own = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (own - low) / ((high - low) or 1) * (self.end - self.start)


class Drawing:
    """A chart with its parts in SVG units. If nothing was measured, `lines` is empty."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        finite = [
            replace(line, points=[(x, y) for x, y in line.points if math.isfinite(y)])
            for line in chart.lines
        ]
        lines = [replace(line, points=thin(line.points)) for line in finite if line.points]
        self.lines: list[tuple[Line, str, list[tuple[float, float, str]]]] = []
        """Each line with its path, and its marks as (x, y, tooltip)."""
        if not lines:
            return
        xs = [x for line in lines for x, _ in line.points] + [x for x, _ in chart.events]
        ys = [y for line in lines for _, y in line.points]
        self.log = chart.log and 0 < 5 * min(ys) < max(ys)
        bottom = 0.0 if chart.from_zero else min(ys)
        levels = log_ticks(min(ys), max(ys)) if self.log else nice_ticks(bottom, max(ys))
        if chart.most < math.inf:
            levels = [tick for tick in levels if 0 <= tick <= chart.most]
        top = TOP + (22 if chart.events else 0)
        first, last = min(xs) if chart.log_x else min(0.0, *xs), max(xs)
        widest = max(len(chart.show(tick)) for tick in levels)
        self.left = max(LEFT, round(8 + CHARACTER * widest))
        names = 14 + 7 * max(len(line.name) for line in lines)
        self.right = WIDTH - max(names, round(4 + CHARACTER / 2 * len(_short(last))))
        self._x = _Axis(first, last, self.left, self.right, chart.log_x)
        self._y = _Axis(levels[0], levels[-1], HEIGHT - BOTTOM, top, self.log)
        ticks = log_ticks(first, last) if chart.log_x else nice_ticks(first, last)
        columns = [tick for tick in ticks if first <= tick <= last]
        self.levels = [(self._y.at(tick), chart.show(tick)) for tick in levels]
        self.columns = [(self._x.at(tick), _short(tick)) for tick in columns]
        self.lines = [(line, self._path(line), self._marks(line)) for line in lines]

    def description(self) -> str:
        """Describe in words where each line begins and ends."""
        show, title = self.chart.show, self.chart.title
        ends = [
            f"{line.name or title}: from {show(line.points[0][1])} to {show(line.points[-1][1])}"
            for line, _, _ in self.lines
        ]
        return f"{title} by {self.chart.x_title}. {'; '.join(ends)}."

    def events(self) -> list[tuple[float, str, float, int | None]]:
        """Return (x, text, x of the text, its row); a text without room has no row."""
        placed, ends = [], [-math.inf] * 2
        for x, text in sorted((self._x.at(x), text) for x, text in self.chart.events):
            width = 6.2 * len(text)
            start = min(x + 3, self.right - width)
            row = next((row for row, end in enumerate(ends) if start > end), None)
            if row is not None:
                ends[row] = start + width + 6
            placed.append((x, text, start, row))
        return placed

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
        return [(self._x.at(x), self._y.at(y)) for x, y in line.points]

    def _path(self, line: Line) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self._positions(line))

    def _marks(self, line: Line) -> list[tuple[float, float, str]]:
        if not line.marked and len(line.points) > 1:
            return []
        chosen = slice(None, None, -math.ceil(len(line.points) / MAX_MARKS))  # with the last
        pairs = zip(self._positions(line)[chosen], line.points[chosen], strict=True)
        before = f"{line.name} {self.chart.x_title}".strip()
        return [(*at, f"{before} {_short(x)}: {self.chart.show(y)}") for at, (x, y) in pairs]


def thin(points: Points, most: int = MAX_POINTS) -> Points:
    """Return at most that many points: the means of neighbors, and the last point as it is."""
    size = math.ceil((len(points) - 1) / max(1, most - 1))
    if size <= 1:
        return points
    groups = [points[i : min(i + size, len(points) - 1)] for i in range(0, len(points) - 1, size)]
    columns = [tuple(zip(*group, strict=True)) for group in groups]
    return [(sum(xs) / len(xs), sum(ys) / len(ys)) for xs, ys in columns] + points[-1:]


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


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5, 10 ... around a range; only powers of ten if these are too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    fine = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first = max((tick for tick in fine if tick <= low * 1.001), default=low)
    last = min((tick for tick in fine if tick >= high * 0.999), default=high)
    ticks = [tick for tick in fine if first <= tick <= last]
    if len(ticks) > 8:
        ticks = [10.0**power for power in powers if 10.0**power < high * 10]
    return [float(f"{tick:.3g}") for tick in ticks] if len(ticks) > 1 else [first, first * 10]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"
