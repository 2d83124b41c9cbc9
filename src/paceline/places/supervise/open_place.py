"""What a place gives to `launch`: the workers of an attempt, and whether there is room for more.

Each module of `places` has a context manager `open_place(job, listen)` that yields one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from paceline.job import Job
from paceline.messages import Send
from paceline.places.supervise.process import Worker


class OpenPlace:
    """A place where workers can be started for a job."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def workers(self, count: int) -> AbstractContextManager[Sequence[Worker]]:
        """Prepare an attempt with `count` workers: their jobs and their connections."""
        raise NotImplementedError

    def has_room(self, count: int) -> bool:
        """Return whether `count` workers can run now."""
        return True

    def listener(self, listen: Send) -> Send:
        """Return the listener for the messages of the workers."""
        return listen
