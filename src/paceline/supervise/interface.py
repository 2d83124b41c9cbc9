"""What a place provides and a group uses: workers, and the inbox of their messages."""

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline.job import Job
from paceline.messages import Message, Send

Inbox = queue.Queue[tuple[int, Message | None]]
"""Messages with the number of their worker; None after a worker's last one."""


class Worker(Protocol):
    """A worker of a group: a process of this machine, or a process behind a Spark task."""

    @property
    def job(self) -> Job: ...

    @property
    def log(self) -> Path | None: ...

    def start(self) -> None: ...

    def messages(self) -> Iterator[Message]:
        """Yield its messages until it has ended."""

    def poll(self) -> int | None:
        """Return the exit code of a worker that has ended, or None."""

    def wait(self) -> int:
        """Return the exit code of a worker that sends nothing more; kill it if it does not exit."""

    def send_signal(self, number: int) -> None: ...

    def ask(self, request: str, **facts: int) -> None:
        """Send a request of `recovery`; a worker that has ended gets none."""

    def end(self) -> None:
        """Kill the worker and everything that it started."""


@dataclass(frozen=True)
class OpenPlace:
    """What `open_place(job, listen)` of each module of `places` yields."""

    job: Job
    workers: Callable[[int], AbstractContextManager[Sequence[Worker]]]
    """Prepares an attempt with this many workers: their jobs and their connections."""
    listen: Send
    """Gets the messages of the workers."""
