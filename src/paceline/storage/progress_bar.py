"""A progress bar that appears only if the work takes longer than two seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

PATIENCE_S = 2.0


@contextmanager
def late_bar(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """Show a progress bar; yield a function to call with the amount of work that was done."""
    bar = Progress(console=Console(stderr=True), auto_refresh=False)
    task, shown = bar.add_task(what, total=total), time.monotonic() + PATIENCE_S

    def advance(amount: float) -> None:
        nonlocal shown
        bar.advance(task, amount)
        if time.monotonic() >= shown:
            bar.start()
            bar.refresh()
            shown = time.monotonic() + 0.2

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
