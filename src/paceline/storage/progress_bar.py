"""A progress bar that appears only if the work takes longer than two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PATIENCE_S = 2.0


@contextmanager
def late_bar(
    what: str, total: float, console: Console | None = None
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar; yield a function to call with the amount of work that was done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console or Console(stderr=True), auto_refresh=False)
    task, done, begun = bar.add_task(what, total=total), 0.0, time.monotonic()
    shown = begun + PATIENCE_S

    def advance(amount: float) -> None:
        nonlocal done, shown
        done += amount
        if time.monotonic() >= shown:
            bar.start()
            bar.update(task, completed=done, refresh=True)
            shown = time.monotonic() + 0.2

    try:
        yield advance
        if shown > begun + PATIENCE_S:
            bar.update(task, completed=total, refresh=True)
    finally:
        if bar.live.is_started:
            bar.stop()
