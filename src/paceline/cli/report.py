"""`paceline report`: one page about one or several runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.errors import UserError


@dataclass(frozen=True)
class Report:
    """One self-contained page about one or several runs: curves, what the model confuses, its worst mistakes, what differs between them.

    Example: paceline report runs/shapes-6d2c1f04 runs/shapes-41b6c3aa -o report.html"""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")] = ()
    """Run folders, or names of runs in runs/."""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = "report.html"
    """The page to write."""
    force: bool = False
    """Replace a page that is there."""


def report(arguments: list[str]) -> int:
    """One self-contained page about one or several runs: paceline report RUN... -o FILE"""
    from paceline.cli.commands import parse
    from paceline.results.report import write_report

    flags = parse(Report, "paceline report", arguments, Report())
    if not flags.runs:
        raise UserError("which run? Use: paceline report RUN... -o FILE")
    left_out = write_report(flags.runs, Path(flags.out), flags.force)
    for line in left_out:
        print(f"paceline: left out: {line}", file=sys.stderr)
    print(f"ready: {flags.out}")
    return 1 if left_out else 0
