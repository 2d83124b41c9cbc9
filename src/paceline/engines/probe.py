"""Whether the workers of a cluster answer at their addresses."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

_TIMEOUT_S = 2.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def answers(address: str) -> bool:
    """Return whether a worker's gRPC server answers a greeting.

    A connection alone is not enough: the kernel accepts it for a stopped process too.
    """
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S) as connection:
            connection.sendall(_HTTP2_GREETING + _EMPTY_SETTINGS)
            return bool(connection.recv(1))
    except OSError:
        return False


def find_silent(addresses: Sequence[str]) -> list[str]:
    """Return those that do not answer; all are asked at the same time."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        found = pool.map(answers, addresses)
        return [address for address, there in zip(addresses, found, strict=True) if not there]
