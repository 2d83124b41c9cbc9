"""How an attempt with a group of workers ends, if not with a result."""

from __future__ import annotations

import signal
from pathlib import Path

from paceline.errors import Ended


class WorkerFailed(Ended):
    """A worker ended unexpectedly or hangs; the text has its name, its error and its log."""

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


class RoomForAll(Exception):
    """Fewer workers than wanted ended after a checkpoint, so that all of them can continue."""


class Interrupted(Ended):
    """A signal ended the run.

    After the first signal, workers save a checkpoint and exit. A second one, or one before training
    began, ends them at once.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + (signal.SIGTERM if number == signal.SIGUSR1 else number)
