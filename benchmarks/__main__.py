"""Measures Paceline against other software: `python -m benchmarks [suite ...]`.

Without arguments, it runs the suites of the published table, which take half an hour.
"""

import argparse
import json
import signal
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from benchmarks import chart, machine, report
from benchmarks.harness import ContenderFailed
from benchmarks.suites import PUBLISHED, SUITES, Settings, load


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join(SUITES)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"any of {known}; or all")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender")
    parser.add_argument("--turn-seconds", type=float, default=1.5, help="length of a turn")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="for the results")
    parsed = parser.parse_args(arguments)
    parsed.suites = list(SUITES) if parsed.suites == ["all"] else parsed.suites or PUBLISHED
    unknown = [name for name in parsed.suites if name not in SUITES]
    if unknown:
        parser.error(f"there is no suite {', '.join(unknown)}; there are {known}")
    if parsed.rounds < 1 or parsed.turn_seconds <= 0:
        parser.error("--rounds must be 1 or more and --turn-seconds above 0")
    return parsed


def _tell(console: Console, suite: str, message: str) -> None:
    console.print(f"[dim]{suite}: {message}[/dim]")


def main() -> int:
    options, console = parse(sys.argv[1:]), Console(width=None if sys.stdout.isatty() else 140)
    # As an exception, so that the contenders are ended too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    described, results, failed = machine.describe(), {}, False
    for name in options.suites:
        settings = Settings(options.rounds, options.turn_seconds, partial(_tell, console, name))
        entry: dict[str, Any]
        try:
            result = load(name)(settings)
            report.show(result, console)
            entry = asdict(result)
        except ContenderFailed as failure:
            console.print(f"[red]{name}: {escape(str(failure))}[/red]", highlight=False)
            entry, failed = {"error": str(failure)}, True
        results[name] = entry
        # After every suite, so that a later failure loses nothing.
        report.save(options.out, described, results)
    saved = json.loads(options.out.read_text())
    console.print(report.comparison(chart.ratios(saved)))
    drawing = options.out.with_suffix(".svg")
    drawing.write_text(chart.picture({str(described["processor"]): chart.ratios(saved)}))
    console.print(f"[dim]saved as {options.out} and {drawing}[/dim]", highlight=False)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
