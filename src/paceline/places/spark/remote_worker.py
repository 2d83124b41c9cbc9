"""A worker behind the connection of its Spark task, as a group of workers sees it."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from paceline.job import Job
from paceline.messages import Crash, Exit, Log, Message, from_line
from paceline.places.spark.connection import Connection
from paceline.places.supervise.process import EXIT_S

GONE = 1
"""Exit code of a worker whose executor is gone."""


class RemoteWorker:
    """A worker that its task has started. It ends when the connection does."""

    def __init__(self, job: Job, log: Path, connection: Connection, host: str) -> None:
        self.job = job
        self.log = log
        self._connection = connection
        self._host = host
        self._code: int | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Do nothing: it runs already."""

    def messages(self) -> Iterator[Message]:
        """Yield its messages, and write its log."""
        with open(self.log, "a", encoding="utf-8") as log:
            for line in self._connection.lines():
                try:
                    message = from_line(line)
                except ValueError:  # the last line of a host that vanished
                    break
                if isinstance(message, Exit):
                    self._code = message.code
                    break
                if isinstance(message, Log):
                    log.write(message.text)
                    log.flush()
                else:
                    yield message
        if self._code is None:
            self._code = GONE
            yield Crash(f"its executor on host {self._host} is gone")
        self._ended.set()

    def poll(self) -> int | None:
        return self._code

    def wait(self) -> int:
        if not self._ended.wait(EXIT_S):
            self.end()
            self._ended.wait(EXIT_S)
        return GONE if self._code is None else self._code

    def send_signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self.end()
        else:
            self._write({"signal": number})

    def ask(self, request: str, **facts: int) -> None:
        self._write({"request": request} | facts)

    def end(self) -> None:
        self._connection.shut_down()  # without it a task ends its worker

    def _write(self, command: dict[str, str | int]) -> None:
        self._connection.write(json.dumps(command).encode() + b"\n")
