"""The connection between a Spark task and its driver, and the worker behind it.

It carries lines of JSON: messages of the worker to the driver, signals and requests to the worker.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.job import Job
from paceline.messages import Crash, Message, from_line
from paceline.supervise.process import EXIT_S

KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""Options with which a host notices within half a minute that the other one has vanished."""
GONE = 1
"""Exit code of a worker whose executor is gone."""


@dataclass(frozen=True)
class Log(Message):
    """Lines of a worker's log."""

    text: str


@dataclass(frozen=True)
class Exit(Message):
    """A worker has ended."""

    code: int


class Connection:
    """One side. If the other side is gone, lines are dropped, and reading ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rwb")
        self._lock = threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE.items():
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def write(self, line: bytes) -> None:
        with self._lock, suppress(OSError, ValueError):
            self._file.write(line)
            self._file.flush()

    def read_first(self, timeout_s: float) -> bytes:
        """Return the first line, of a limited length; raise OSError after the timeout."""
        self._socket.settimeout(timeout_s)
        line = self._file.readline(4096)
        self._socket.settimeout(None)
        return line

    def lines(self) -> Iterator[bytes]:
        with suppress(OSError, ValueError):
            yield from self._file

    def shut_down(self) -> None:
        """End the connection for both sides and for every thread that waits; close would not."""
        with suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)


class RemoteWorker:
    """A worker that its task has started, as a group sees it. It ends when the connection does."""

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
            self._connection.write(json.dumps({"signal": number}).encode() + b"\n")

    def ask(self, request: str, **facts: int) -> None:
        self._connection.write(json.dumps({"request": request} | facts).encode() + b"\n")

    def end(self) -> None:
        self._connection.shut_down()  # without it a task ends its worker
