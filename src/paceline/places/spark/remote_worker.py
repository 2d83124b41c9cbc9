"""A worker behind the connection of its Spark task, with the methods of a `subprocess.Popen`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from paceline.messages import Crash, Exit, Log, from_line, to_line
from paceline.places.spark.connection import shut_down

GONE = 1
"""Exit code of a worker whose executor is gone."""


class RemoteWorker:
    """Writes the worker's log, and passes its messages to the pipe `reader`."""

    def __init__(self, connection: socket.socket, host: str, log: Path) -> None:
        self._connection = connection
        self._host = host
        self._log = log
        self.stdin: IO[bytes] | None = connection.makefile("wb")
        self.reader, self._writer = os.pipe()
        self._code: int | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self._code

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        shut_down(self._connection)  # without it a task ends its worker

    def send_signal(self, sig: int) -> None:
        if sig == signal.SIGKILL:
            self.kill()
            return
        assert self.stdin
        with suppress(OSError, ValueError):  # gone already
            self.stdin.write(json.dumps({"signal": sig}).encode() + b"\n")
            self.stdin.flush()

    def _read(self) -> None:
        with (
            os.fdopen(self._writer, "wb", buffering=0) as messages,
            open(self._log, "a", encoding="utf-8") as log,
            suppress(OSError),  # nobody listens any more
        ):
            with suppress(OSError, ValueError):  # a host that vanished, or an incomplete line
                self._copy(messages, log)
            if self._code is None:
                self._code = GONE
                text = f"its executor on host {self._host} is gone"
                messages.write(to_line(Crash(text)).encode())

    def _copy(self, messages: IO[bytes], log: IO[str]) -> None:
        """Copy messages and log until the worker has ended."""
        for line in self._connection.makefile("rb"):
            message = from_line(line)
            if isinstance(message, Exit):
                self._code = message.code
                return
            if isinstance(message, Log):
                log.write(message.text)
                log.flush()
            else:
                messages.write(line)
