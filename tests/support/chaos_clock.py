"""The clock of `make chaos`, which leaves out pauses of the whole machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """Seconds in which this process could run: a pause of it, and of its training, is left out."""

    LONGEST_S = 3.0
    """A longer time between two looks is a pause."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = time.monotonic()
        self._total = 0.0
        self.paused = 0.0
        """Seconds that were left out so far."""
        threading.Thread(target=self._tick, daemon=True).start()

    def now(self) -> float:
        with self._lock:
            now = time.monotonic()
            gone = now - self._seen
            self._total += min(gone, self.LONGEST_S)
            self.paused += gone if gone > self.LONGEST_S else 0.0
            self._seen = now
            return self._total

    def sleep(self, seconds: float) -> None:
        until = self.now() + seconds
        while (left := until - self.now()) > 0:
            time.sleep(min(left, 0.2))

    def wait_until(
        self, happened: Callable[[], Any], timeout_s: float, complaint: Callable[[], str]
    ) -> None:
        deadline = self.now() + timeout_s
        while not happened():
            assert self.now() < deadline, complaint()
            time.sleep(0.1)

    def _tick(self) -> None:
        while True:
            time.sleep(0.25)
            self.now()


CLOCK = Clock()
