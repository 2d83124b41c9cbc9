"""Prints the results of suites as tables, and saves them as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.summary import Figure, Quartiles, SuiteResult

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
    table = Table(
        "figure", "measured", "target", "reached", title=None if result.rows else result.title
    )
    for figure in result.figures:
        table.add_row(*_cells(figure))
    return table


def target_table(results: Mapping[str, SuiteResult]) -> Table:
    """Return the figures of all suites that have a target."""
    table = Table("suite", "figure", "measured", "target", "reached", title="Targets")
    for name, result in results.items():
        for figure in result.figures:
            if figure.target:
                table.add_row(name, *_cells(figure))
    return table


def _cells(figure: Figure) -> tuple[str, str, str, str]:
    target = figure.target
    wanted = f"{target.comparison} {target.value:g} {figure.unit}" if target else ""
    reached = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}[figure.reached]
    return figure.name, f"{spread(figure.measured)} {figure.unit}", wanted, reached


def show(result: SuiteResult, console: Console) -> None:
    if result.rows:
        console.print(contender_table(result))
    console.print(figure_table(result))
    for note in result.notes:
        console.print(f"[dim]{note}[/dim]", highlight=False)


def _figure_to_json(figure: Figure) -> dict[str, Any]:
    return dataclasses.asdict(figure) | {"reached": figure.reached}


def to_json(result: SuiteResult) -> dict[str, Any]:
    return dataclasses.asdict(result) | {
        "figures": [_figure_to_json(figure) for figure in result.figures]
    }


def save(path: Path, machine: dict[str, Any], suites: dict[str, Any]) -> None:
    path.write_text(json.dumps({"machine": machine, "suites": suites}, indent=1) + "\n")
