"""Starts lost workers of parameter servers again: they hold no state, so the others continue."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from paceline.places.supervise.process import Worker


class Replacements:
    """The restarts that each worker has left. A new checkpoint gives all of them back."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self.refill()

    def refill(self) -> None:
        """Give every worker all of its restarts."""
        self._left = [worker.job.place.max_restarts for worker in self._workers]

    def can_replace(self, index: int) -> bool:
        """Return whether a worker can be lost without ending the others."""
        cluster = self._workers[index].job.cluster
        return len(self._workers) > 1 and cluster.serves and cluster.role == "worker"

    def spend(self, index: int) -> bool:
        """Use one restart of a worker; return False if none is left."""
        self._left[index] -= 1
        return self._left[index] >= 0

    def kill(self, silent: Sequence[int]) -> None:
        """Kill the silent workers that can be replaced; the group notices their end."""
        for index in silent:
            if self.can_replace(index):
                self._workers[index].send_signal(signal.SIGKILL)
