"""How a group of workers ends other than well: a worker failed, a signal ended all of them, or the
place has no room for them."""

from __future__ import annotations

import signal
from pathlib import Path

from paceline.errors import Ended


class WorkerFailed(Ended):
    """A worker ended unexpectedly or stopped; the text has its name, its error and its log."""

    saved = False
    """Whether its group saved a checkpoint before."""
    started = False
    """Whether its group had begun to train."""

    def __init__(self, name: str, reason: str, log: Path | None) -> None:
        super().__init__(f"{name} failed: {reason}" + (f"; its log is {log}" if log else ""))
        self.reason = reason


class RoomForFewer(Exception):
    """The place has room for `workers` workers only."""

    def __init__(self, workers: int, reason: str) -> None:
        super().__init__(reason)
        self.workers = workers


class Interrupted(Ended):
    """A signal ended the run.

    After the first signal, workers save a checkpoint and end. A second one, or one before training
    began, ends them at once.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + (signal.SIGTERM if number == signal.SIGUSR1 else number)
