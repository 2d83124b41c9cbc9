"""Where the parts of a chart are in its drawing; `templates/chart.html` writes them as SVG.

Lines differ by dashes, marks and the name at their end, so that nobody needs the colours. Colours
are classes of the page's style (`s0` to `s7`), which follow its light and dark schemes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from paceline.results.report.run_data import Points

WIDTH, HEIGHT = 440, 250
LEFT, TOP, BOTTOM = 46, 14, 34
"""Margins of the plot inside the drawing."""
MAX_POINTS = 240
"""Longer curves are averaged to this many points: a chart has no more pixels on any screen."""
MAX_MARKS = 24
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2", "1 4", "10 2 4 2")
MARKS = (
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
    from_zero: bool = False
    events: Sequence[tuple[float, str]] = ()
    """Vertical lines with a text: (x, text)."""


@dataclass(frozen=True)
class Style:
    """How a line and its marks look."""

    colour: str
    dashes: str
    mark: str
    fill: str


@dataclass(frozen=True)
class Event:
    """A vertical line; its text is in row 0 or 1 above the plot, or only in the tooltip (None)."""

    x: float
    text: str
    text_x: float
    row: int | None


@dataclass(frozen=True)
class Curve:
    style: Style
    path: str
    marks: list[tuple[float, float, str]] = field(default_factory=list)
    """Place, and the text of the tooltip."""


@dataclass(frozen=True)
class Drawing:
    """A chart with its places in SVG units; without curves, if nothing was measured."""

    title: str
    x_title: str = ""
    description: str = ""
    log: bool = False
    right: float = 0.0
    levels: list[tuple[float, str]] = field(default_factory=list)
    columns: list[tuple[float, str]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    names: list[tuple[float, float, str, Style]] = field(default_factory=list)


@dataclass(frozen=True)
class _Axis:
    """Maps the values from `low` to `high` to the places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / ((high - low) or 1) * (self.end - self.start)


def draw(chart: Chart) -> Drawing:
    """Place the parts of a chart."""
    finite = [
        (line, [point for point in line.points if math.isfinite(point[1])]) for line in chart.lines
    ]
    lines = [replace(line, points=thin(points)) for line, points in finite if points]
    if not lines:
        return Drawing(chart.title)
    xs = [x for line in lines for x, _ in line.points] + [x for x, _ in chart.events]
    ys = [y for line in lines for _, y in line.points]
    log = chart.log and 0 < 5 * min(ys) < max(ys)
    bottom = 0.0 if chart.from_zero else min(ys)
    ticks = log_ticks(min(ys), max(ys)) if log else nice_ticks(bottom, max(ys))
    right = WIDTH - 14 - 7 * max(len(line.name) for line in lines)
    top = TOP + (22 if chart.events else 0)
    x_axis = _Axis(min(0.0, *xs), max(xs), LEFT, right)
    y_axis = _Axis(ticks[0], ticks[-1], HEIGHT - BOTTOM, top, log)
    columns = [x for x in nice_ticks(x_axis.low, x_axis.high) if x_axis.low <= x <= x_axis.high]
    return Drawing(
        title=chart.title,
        x_title=chart.x_title,
        description=_describe(chart, lines),
        log=log,
        right=right,
        levels=[(y_axis.place(tick), chart.show(tick)) for tick in ticks],
        columns=[(x_axis.place(tick), _short(tick)) for tick in columns],
        events=_place_events([(x_axis.place(x), text) for x, text in chart.events], right),
        curves=[_curve(chart, line, x_axis, y_axis) for line in lines],
        names=_place_names(lines, x_axis, y_axis),
    )


def style_of(index: int) -> Style:
    """Return a style; the first eight have different dashes, and sixteen different marks, too."""
    fill = "filled" if (index // 4 + index // 8) % 2 else "hollow"
    return Style(f"s{index % 8}", DASHES[index % 8], MARKS[index % 4], fill)


def thin(points: Points, most: int = MAX_POINTS) -> Points:
    """Return at most that many points: the means of neighbours, and the last point as it is."""
    size = math.ceil((len(points) - 1) / max(1, most - 1))
    if size <= 1:
        return points
    groups = [points[i : min(i + size, len(points) - 1)] for i in range(0, len(points) - 1, size)]
    means = [
        tuple(sum(values) / len(group) for values in zip(*group, strict=True)) for group in groups
    ]
    return [*((x, y) for x, y in means), points[-1]]


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


def _describe(chart: Chart, lines: Sequence[Line]) -> str:
    """Describe in words where each curve begins and ends."""
    ends = [(line.name, *(chart.show(line.points[i][1]) for i in (0, -1))) for line in lines]
    told = [f"{name or chart.title}: from {first} to {last}" for name, first, last in ends]
    return f"{chart.title} by {chart.x_title}. {'; '.join(told)}."


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def _place_events(events: Sequence[tuple[float, str]], right: float) -> list[Event]:
    """Put each text in the first row that has room for it, else in no row."""
    placed, ends = [], [-math.inf] * 2
    for x, text in sorted(events):
        width = 6.2 * len(text)
        start = min(x + 3, right - width)
        row = next((row for row, end in enumerate(ends) if start > end), None)
        if row is not None:
            ends[row] = start + width + 6
        placed.append(Event(x, text, start, row))
    return placed


def _curve(chart: Chart, line: Line, x_axis: _Axis, y_axis: _Axis) -> Curve:
    placed = [(x_axis.place(x), y_axis.place(y)) for x, y in line.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    if not line.marked:
        return Curve(style_of(line.style), path)
    texts = [f"{line.name} {chart.x_title} {_short(x)}: {chart.show(y)}" for x, y in line.points]
    marks = [(x, y, text.strip()) for (x, y), text in zip(placed, texts, strict=True)]
    every = math.ceil(len(marks) / MAX_MARKS)
    return Curve(style_of(line.style), path, marks[::-1][::every])  # the last one always


def _place_names(
    lines: Sequence[Line], x_axis: _Axis, y_axis: _Axis
) -> list[tuple[float, float, str, Style]]:
    """Put each name beside the end of its curve, moved apart if several end together."""
    ends = [
        (x_axis.place(line.points[-1][0]), y_axis.place(line.points[-1][1]), line)
        for line in lines
        if line.name
    ]
    ends.sort(key=lambda end: end[1])
    heights = [y for _, y, _ in ends]
    for _ in range(40):
        for (i, above), (j, below) in combinations(enumerate(ends), 2):
            overlap = 12 - (heights[j] - heights[i])
            if overlap > 0 and abs(above[0] - below[0]) < 40:
                heights[i], heights[j] = heights[i] - overlap / 2, heights[j] + overlap / 2
        heights = [min(max(height, TOP), HEIGHT - BOTTOM) for height in heights]
    return [
        (x, height, line.name, style_of(line.style))
        for (x, _, line), height in zip(ends, heights, strict=True)
    ]
