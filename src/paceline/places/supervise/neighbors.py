"""What connects the workers of one machine: memory that they share, and a socket for each pair.

`engines.shared_memory` uses it. Both are passed on to the worker processes as open files, so there
is no name that another program could open, and nothing remains when the last of them ends.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

from paceline.job import Job
from paceline.messages import NEIGHBORS
from paceline.places.supervise.process import Process, start_worker

MOST_WORKERS = 16
"""More would need too many open files; they exchange vectors over the network."""


class Neighbors:
    """The connections of the workers of one attempt. Leaving the `with` block closes them here."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def __enter__(self) -> Neighbors:
        self._open = ExitStack()
        self._memory = os.memfd_create("paceline")
        self._open.callback(os.close, self._memory)
        self._sockets: list[dict[int, socket.socket]] = [{} for _ in range(self._workers)]
        for low, high in combinations(range(self._workers), 2):
            self._sockets[low][high], self._sockets[high][low] = map(
                self._open.enter_context, socket.socketpair()
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def of(self, index: int) -> tuple[list[int], dict[str, str]]:
        """Return the open files of a worker, and the environment variable that names them."""
        others = [each.fileno() for _, each in sorted(self._sockets[index].items())]
        passed = [self._memory, *others]
        return passed, {NEIGHBORS: ",".join(map(str, passed))}

    def close(self, index: int) -> None:
        """Close the sockets of a started worker here: its end must be seen, not that of this
        process."""
        for each in self._sockets[index].values():
            each.close()

    def start(self, job: Job, log: Path | None) -> tuple[Process, int]:
        """Start a worker with its connections to the others."""
        passed, variable = self.of(job.cluster.index)
        started = start_worker(job, log, environment={**os.environ, **variable}, passed=passed)
        self.close(job.cluster.index)
        return started
