"""Curves as SVG: small, drawn without JavaScript, told apart by dashes, marks and names at their ends, so that none needs its colour.

Colours are classes of the page's style (`s0` to `s7`), and so follow its light and dark schemes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

from paceline.report.html import element
from paceline.report.story import Points

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 440, 250, 46, 14, 34
SCREEN_POINTS = 240
"""More points than this are averaged: a chart is not wider on any screen that it would show."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2", "1 4", "10 2 4 2")
MARKS = "○□◇△●■◆▲"


@dataclass(frozen=True)
class Line:
    """`style` chooses colour, dashes and marks; evaluations are `marked` at every point."""

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
    """A value as text."""
    log: bool = False
    from_zero: bool = False
    events: Sequence[tuple[float, str]] = ()
    """Where something happened, as vertical lines with a text."""
    note: str = ""


def draw(chart: Chart) -> Element:
    """The chart as a figure; its description says in words where each curve begins and ends."""
    lines = [Line(line.name, thin(_positive(line.points, chart.log)), line.style, line.marked) for line in chart.lines]
    lines = [line for line in lines if line.points]
    caption = element("figcaption", chart.title, element("small", f" {chart.note}") if chart.note else None)
    if not lines:
        return element("figure", caption, element("p", "Nothing measured yet.", class_="quiet"), class_="chart")
    right = 14 + max((7 * len(line.name) for line in lines), default=0)
    xs = [x for line in lines for x, _ in line.points] + [x for x, _ in chart.events]
    ys = [y for line in lines for _, y in line.points]
    low_x, high_x = min(0.0, *xs), max(xs)
    ticks = log_ticks(min(ys), max(ys)) if chart.log else nice_ticks(0.0 if chart.from_zero else min(ys), max(ys))

    def place_x(x: float) -> float:
        return LEFT + (x - low_x) / ((high_x - low_x) or 1) * (WIDTH - LEFT - right)

    def place_y(y: float) -> float:
        low, high, value = (math.log(v) if chart.log else v for v in (ticks[0], ticks[-1], y))
        return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM)

    placed = [Line(line.name, [(place_x(x), place_y(y)) for x, y in line.points], line.style, line.marked) for line in lines]
    svg = element(
        "svg",
        element("title", _describe(chart, lines)),
        [_level(place_y(tick), chart.show(tick), WIDTH - right) for tick in ticks],
        [_column(place_x(tick), _short(tick)) for tick in nice_ticks(low_x, high_x) if low_x <= tick <= high_x],
        element(
            "text", chart.x_title, x=f"{(LEFT + WIDTH - right) / 2:.0f}", y=HEIGHT - 3, class_="axis", text_anchor="middle"
        ),
        _events([(place_x(x), text) for x, text in chart.events], WIDTH - right),
        [part for line in placed for part in _curve(line)],
        _end_names(placed),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )
    return element("figure", caption, svg, class_="chart")


def sample(style: int) -> Element:
    """A piece of a run's line, for tables."""
    line = element("path", d="M1 7H27", class_=f"line s{style % 8}", stroke_dasharray=DASHES[style % 8])
    return element("svg", line, _mark(14, 7, style), viewBox="0 0 28 14", class_="sample", aria_hidden="true")


def thin(points: Points, most: int = SCREEN_POINTS) -> Points:
    """At most that many points: the means of neighbours, but the last one as it is."""
    size = math.ceil((len(points) - 1) / max(1, most - 1))
    if size <= 1:
        return points
    groups = [points[i : min(i + size, len(points) - 1)] for i in range(0, len(points) - 1, size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups] + points[-1:]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values from at or below `low` to at or above `high`."""
    if high <= low:
        low, high = (low - 0.5, low + 0.5) if low else (0.0, 1.0)
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 ... around a range; only powers of ten where these would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    fine = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first = max((tick for tick in fine if tick <= low * 1.001), default=low)
    last = min((tick for tick in fine if tick >= high * 0.999), default=high)
    ticks = [tick for tick in fine if first <= tick <= last]
    if len(ticks) > 8:
        ticks = [10.0**power for power in powers if 10.0**power < high * 10]
    return [float(f"{tick:.3g}") for tick in ticks] if len(ticks) > 1 else [first, first * 10]


def _positive(points: Points, log: bool) -> Points:
    return [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not log)]


def _describe(chart: Chart, lines: Sequence[Line]) -> str:
    told = [
        f"{line.name or chart.title}: from {chart.show(line.points[0][1])} to {chart.show(line.points[-1][1])}"
        for line in lines
    ]
    return f"{chart.title} by {chart.x_title}. " + "; ".join(told) + "."


def _level(y: float, text: str, right: float) -> Element:
    label = element("text", text, x=LEFT - 6, y=f"{y + 4:.1f}", class_="tick", text_anchor="end")
    return element("g", element("path", d=f"M{LEFT} {y:.1f}H{right:.0f}", class_="grid"), label)


def _column(x: float, text: str) -> Element:
    return element("text", text, x=f"{x:.1f}", y=HEIGHT - BOTTOM + 15, class_="tick", text_anchor="middle")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _events(events: Sequence[tuple[float, str]], right: float) -> list[Element]:
    """A dashed line each; texts side by side in the first row that has room, else only under the pointer."""
    parts, rows = [], [-math.inf] * 3
    for x, text in events:
        group = element("g", element("title", text), class_="event")
        group.append(element("path", d=f"M{x:.1f} {TOP - 8}V{HEIGHT - BOTTOM}"))
        width = 5.6 * len(text)
        start = x + 3 if x + 3 + width < right + 10 else x - 3 - width
        free = next((i for i, end in enumerate(rows) if start > end), None)
        if free is not None:
            rows[free] = start + width + 6
            y = HEIGHT - BOTTOM - 6 - 13 * free
            group.append(element("text", text, x=f"{start:.1f}", y=y))
        parts.append(group)
    return parts


def _curve(line: Line) -> list[Element]:
    points = [f"{x:.1f} {y:.1f}" for x, y in line.points]
    style = line.style % 8
    parts = [element("path", d="M" + "L".join(points), class_=f"line s{style}", stroke_dasharray=DASHES[style])]
    if line.marked:
        every = math.ceil(len(line.points) / 24)
        parts += [_mark(x, y, line.style) for x, y in line.points[::-1][::every]]
    return parts


def _mark(x: float, y: float, style: int) -> Element:
    shapes = (
        f"M{x - 3:.1f} {y:.1f}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
        f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
        f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z",
        f"M{x:.1f} {y - 4:.1f}l4 7h-8z",
    )
    filled = "filled" if style // 4 % 2 else "hollow"
    return element("path", d=shapes[style % 4], class_=f"mark {filled} s{style % 8}")


def _end_names(lines: Sequence[Line]) -> list[Element]:
    """Each name beside the end of its curve, pushed apart where several end together."""
    ends = sorted(((*line.points[-1], line) for line in lines if line.name), key=lambda end: end[1])
    heights = [y for _, y, _ in ends]
    for _ in range(40):
        for (i, above), (j, below) in pairwise(enumerate(ends)):
            overlap = 12 - (heights[j] - heights[i])
            if overlap > 0 and abs(above[0] - below[0]) < 40:
                heights[i], heights[j] = heights[i] - overlap / 2, heights[j] + overlap / 2
        heights = [min(max(height, TOP), HEIGHT - BOTTOM) for height in heights]
    return [
        element("text", line.name, x=f"{x + 7:.1f}", y=f"{height + 4:.1f}", class_=f"name s{line.style % 8}")
        for (x, _, line), height in zip(ends, heights, strict=True)
    ]
