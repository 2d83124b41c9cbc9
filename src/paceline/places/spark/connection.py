"""The connection between a Spark task and its driver: lines of JSON in both directions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""Options with which a host notices within half a minute that the other one has vanished."""


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
