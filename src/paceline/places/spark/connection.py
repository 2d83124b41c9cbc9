"""The connection between a Spark task and its driver: lines of JSON in both directions."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from paceline.messages import Message, to_line


class DriverConnection:
    """The task's side. If the connection is broken, lines are dropped, and `commands` ends."""

    def __init__(self, connection: socket.socket) -> None:
        keep_alive(connection)
        self._lines = connection.makefile("rwb")
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        self.send_line(to_line(message).encode())

    def send_line(self, line: bytes) -> None:
        with self._lock, suppress(OSError, ValueError):
            self._lines.write(line)
            self._lines.flush()

    def commands(self) -> Iterator[dict[str, Any]]:
        """Yield the driver's commands until it is gone."""
        with suppress(OSError, ValueError):
            for line in self._lines:
                yield json.loads(line)


def keep_alive(connection: socket.socket) -> None:
    """Notice within half a minute if the other host has vanished."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def shut_down(connection: socket.socket) -> None:
    """End a connection for both sides and for every thread that waits for it; close would not."""
    with suppress(OSError):  # it is gone already
        connection.shutdown(socket.SHUT_RDWR)


def read_first_line(connection: socket.socket) -> bytes:
    """Read byte by byte, so that nothing of what follows is taken."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 4096:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line
