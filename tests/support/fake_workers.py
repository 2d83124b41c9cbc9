"""Workers without processes, for tests of a group and of a command. Not a test itself."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paceline.job import Job
from paceline.messages import Done, Message, Send
from paceline.supervise.interface import OpenPlace

UNTIL_SIGNAL = "until a signal"
"""A step of a script: the worker runs until it gets a signal, then saves and exits."""
Script = Sequence[Message | int | str]


class FakeWorker:
    """Sends the messages of a script, which ends with an exit code or UNTIL_SIGNAL."""

    log = None

    def __init__(self, job: Job, script: Script) -> None:
        self.job = job
        self.signals = list[int]()
        self.starts = 0
        self._script = script
        self._signaled = threading.Event()
        self._code: int | None = None

    def start(self) -> None:
        self.starts += 1
        self._code = None

    def messages(self) -> Iterator[Message]:
        for each in self._script:
            if isinstance(each, int):
                self._code = each
            elif isinstance(each, str):
                self._signaled.wait(10.0)
                yield Done({"finished": False})
                self._code = 128 + signal.SIGTERM
            else:
                yield each

    def poll(self) -> int | None:
        return self._code

    def wait(self) -> int:
        return -signal.SIGKILL if self._code is None else self._code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self._signaled.set()

    def ask(self, request: str, **facts: int) -> None:
        """Never answer."""

    def end(self) -> None:
        """Do nothing: there is no process."""


class FakePlace:
    """A place whose attempts go as listed, each a script for the chief."""

    def __init__(self, job: Job, *attempts: Script) -> None:
        self.job = job
        self._attempts = iter(attempts)

    @contextmanager
    def workers(self, count: int) -> Iterator[list[FakeWorker]]:
        yield [FakeWorker(self.job, next(self._attempts))]

    @contextmanager
    def open_place(self, job: Job, listen: Send) -> Iterator[OpenPlace]:
        yield OpenPlace(self.job, self.workers, listen)
