"""Curves as SVG: small, drawn without JavaScript, told apart by dashes, marks and names at their ends, so that none needs its colour.

Colours are classes of the page's style (`s0` to `s7`), and so follow its light and dark schemes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from xml.etree.ElementTree import Element

from paceline.results.report.html import element
from paceline.results.report.story import Points

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 440, 250, 46, 14, 34
SCREEN_POINTS = 240
"""More points than this are averaged: a chart is not wider on any screen that it would show."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2", "1 4", "10 2 4 2")


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
    """On a logarithmic scale where values differ much."""
    from_zero: bool = False
    events: Sequence[tuple[float, str]] = ()
    """Where something happened, as vertical lines with a text."""


def draw(chart: Chart) -> Element:
    """The chart as a figure; its description says in words where each curve begins and ends."""
    lines = [
        replace(line, points=thin([(x, y) for x, y in line.points if math.isfinite(y)]))
        for line in chart.lines
    ]
    lines = [line for line in lines if line.points]
    if not lines:
        nothing = element("p", "Nothing measured yet.", class_="quiet")
        return element("figure", element("figcaption", chart.title), nothing, class_="chart")
    xs = [x for line in lines for x, _ in line.points] + [x for x, _ in chart.events]
    ys = [y for line in lines for _, y in line.points]
    log = chart.log and 0 < 5 * min(ys) < max(ys)
    low_x, high_x = min(0.0, *xs), max(xs)
    right, top = (
        WIDTH - 14 - 7 * max(len(line.name) for line in lines),
        TOP + (22 if chart.events else 0),
    )
    ticks = (
        log_ticks(min(ys), max(ys))
        if log
        else nice_ticks(0.0 if chart.from_zero else min(ys), max(ys))
    )

    def place_x(x: float) -> float:
        return LEFT + (x - low_x) / ((high_x - low_x) or 1) * (right - LEFT)

    def place_y(y: float) -> float:
        low, high, value = (math.log(v) if log else v for v in (ticks[0], ticks[-1], y))
        return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - top - BOTTOM)

    placed = [
        replace(line, points=[(place_x(x), place_y(y)) for x, y in line.points]) for line in lines
    ]
    told = [
        [
            f"{line.name} {chart.x_title} {_short(x)}: {chart.show(y)}".strip()
            for x, y in line.points
        ]
        for line in lines
    ]
    svg = element(
        "svg",
        element("title", _describe(chart, lines)),
        [_level(place_y(tick), chart.show(tick), right) for tick in ticks],
        [
            _column(place_x(tick), _short(tick))
            for tick in nice_ticks(low_x, high_x)
            if low_x <= tick <= high_x
        ],
        element(
            "text",
            chart.x_title,
            x=f"{(LEFT + right) / 2:.0f}",
            y=HEIGHT - 3,
            class_="axis",
            text_anchor="middle",
        ),
        _events([(place_x(x), text) for x, text in chart.events], right),
        [part for line, texts in zip(placed, told, strict=True) for part in _curve(line, texts)],
        _end_names(placed),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )
    caption = element("figcaption", chart.title, element("small", " log scale") if log else None)
    return element("figure", caption, svg, class_="chart")


def sample(style: int) -> Element:
    """A piece of a run's line, for tables."""
    line = element(
        "path", d="M1 7H27", class_=f"line s{style % 8}", stroke_dasharray=DASHES[style % 8]
    )
    return element(
        "svg", line, _mark(14, 7, style), viewBox="0 0 28 14", class_="sample", aria_hidden="true"
    )


def thin(points: Points, most: int = SCREEN_POINTS) -> Points:
    """At most that many points: the means of neighbours, but the last one as it is."""
    size = math.ceil((len(points) - 1) / max(1, most - 1))
    if size <= 1:
        return points
    groups = [points[i : min(i + size, len(points) - 1)] for i in range(0, len(points) - 1, size)]
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in groups
    ] + points[-1:]


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values from at or below `low` to at or above `high`."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-3):
        low, high = (low - 0.5, low + 0.5) if low else (0.0, 1.0)
    rough = (high - low) / count
    power = math.floor(math.log10(rough))
    unit = 10.0**power
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    return [
        round(i * step, 2 - power)
        for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ]


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
    return element(
        "text", text, x=f"{x:.1f}", y=HEIGHT - BOTTOM + 15, class_="tick", text_anchor="middle"
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def _events(events: Sequence[tuple[float, str]], right: float) -> list[Element]:
    """A dashed line each; texts above the curves in the first row that has room, else only under the pointer."""
    parts, rows = [], [-math.inf] * 2
    for x, text in sorted(events):
        width = 6.2 * len(text)
        start = min(x + 3, right - width)
        row = next((row for row, end in enumerate(rows) if start > end), None)
        group = element("g", element("title", text), class_="event")
        group.append(element("path", d=f"M{x:.1f} {3 + 13 * (row or 0)}V{HEIGHT - BOTTOM}"))
        if row is not None:
            rows[row] = start + width + 6
            group.append(element("text", text, x=f"{start:.1f}", y=12 + 13 * row))
        parts.append(group)
    return parts


def _curve(line: Line, texts: Sequence[str]) -> list[Element]:
    """The path and, where they are wanted, marks that tell their values under the pointer."""
    style = line.style % 8
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line.points)
    parts = [element("path", d=path, class_=f"line s{style}", stroke_dasharray=DASHES[style])]
    if line.marked:
        every = math.ceil(len(line.points) / 24)
        chosen = list(zip(line.points, texts, strict=True))[::-1][::every]
        parts += [
            element("g", element("title", text), _mark(x, y, line.style)) for (x, y), text in chosen
        ]
    return parts


def _mark(x: float, y: float, style: int) -> Element:
    shapes = (
        f"M{x - 3:.1f} {y:.1f}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
        f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
        f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z",
        f"M{x:.1f} {y - 4:.1f}l4 7h-8z",
    )
    filled = "filled" if (style // 4 + style // 8) % 2 else "hollow"
    return element("path", d=shapes[style % 4], class_=f"mark {filled} s{style % 8}")


def _end_names(lines: Sequence[Line]) -> list[Element]:
    """Each name beside the end of its curve, pushed apart where several end together."""
    ends = sorted(((*line.points[-1], line) for line in lines if line.name), key=lambda end: end[1])
    heights = [y for _, y, _ in ends]
    for _ in range(40):
        for (i, above), (j, below) in combinations(enumerate(ends), 2):
            overlap = 12 - (heights[j] - heights[i])
            if overlap > 0 and abs(above[0] - below[0]) < 40:
                heights[i], heights[j] = heights[i] - overlap / 2, heights[j] + overlap / 2
        heights = [min(max(height, TOP), HEIGHT - BOTTOM) for height in heights]
    return [
        element(
            "text",
            line.name,
            x=f"{x + 7:.1f}",
            y=f"{height + 4:.1f}",
            class_=f"name s{line.style % 8}",
        )
        for (x, _, line), height in zip(ends, heights, strict=True)
    ]
