"""Prints the results of suites as tables, and saves them as JSON."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.chart import NAMES
from benchmarks.summary import Quartiles, SuiteResult

# Above this a contender took CPU time from the others while it should have slept.
IDLE_LIMIT = 0.02


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(values: Quartiles) -> str:
    """Return the median, and in brackets the quartiles."""
    return f"{number(values.median)} [dim]({number(values.low)} to {number(values.high)})[/dim]"


def contender_table(result: SuiteResult) -> Table:
    table = Table(
        "contender",
        "images/s",
        "CPU ms per image",
        f"times {result.baseline}",
        "peak memory",
        "CPU while idle",
        title=result.title,
    )
    for row in result.rows:
        idle = f"{100 * row.idle_cpu_share:.1f} %"
        shown_idle = f"[red]{idle}[/red]" if row.idle_cpu_share > IDLE_LIMIT else idle
        table.add_row(
            row.name,
            spread(row.images_per_s),
            spread(row.cpu_ms_per_image),
            spread(row.ratio),
            f"{row.peak_bytes / 1e9:.2f} GB",
            shown_idle,
        )
    return table


def figure_table(result: SuiteResult) -> Table:
    table = Table("figure", "measured", title=None if result.rows else result.title)
    for figure in result.figures:
        table.add_row(figure.name, f"{spread(figure.measured)} {figure.unit}")
    return table


def show(result: SuiteResult, console: Console) -> None:
    if result.rows:
        console.print(contender_table(result))
    console.print(figure_table(result))
    for note in result.notes:
        console.print(f"[dim]{note}[/dim]", highlight=False)


def comparison(ratios: dict[str, tuple[float, float, float]]) -> Table:
    """Return one line for each network that was compared with PyTorch."""
    table = Table("images/s, divided by the fastest PyTorch setup", "median (quartiles)")
    for suite, (low, median, high) in ratios.items():
        table.add_row(NAMES[suite], f"{spread(Quartiles(low, median, high))} x")
    return table


def save(path: Path, machine: dict[str, Any], suites: dict[str, Any]) -> None:
    path.write_text(json.dumps({"machine": machine, "suites": suites}, indent=1) + "\n")
