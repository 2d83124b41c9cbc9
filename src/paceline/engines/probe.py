"""Whether the tasks of a cluster answer at their addresses, and how they wait for each other."""

from __future__ import annotations

import errno
import math
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

from paceline.errors import address_taken
from paceline.job import Cluster

POLL_S = 0.2
_TIMEOUT_S = 2.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FIRST_BYTE = b"\0"
"""Of the length of gRPC's first frame; a web server's answer begins with HTTP."""
_EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def answers(address: str) -> bool:
    """Return whether a worker's gRPC server answers a greeting.

    A connection alone is not enough: the kernel accepts it for a stopped process too.
    """
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S) as connection:
            connection.sendall(_HTTP2_GREETING + _EMPTY_SETTINGS)
            return connection.recv(1) == _FIRST_BYTE
    except OSError:
        return False


def find_silent(addresses: Sequence[str]) -> list[str]:
    """Return those that do not answer; all are asked at the same time."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        found = pool.map(answers, addresses)
        return [address for address, there in zip(addresses, found, strict=True) if not there]


def wait_for(addresses: Sequence[str], timeout_s: float = math.inf) -> None:
    """Return when each has answered once. Raise ConnectionError if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while addresses := find_silent(addresses):
        if time.monotonic() > deadline:
            raise ConnectionError(f"no answer from {', '.join(addresses)} within {timeout_s:.0f} s")
        time.sleep(POLL_S)


def wait_for_tasks(cluster: Cluster) -> None:
    """Return when every other worker has answered. This one answers meanwhile.

    A platform may start tasks minutes apart. TensorFlow's own call waits too, but no other thread
    of the process runs meanwhile: nothing could show that this process is alive. Workers that have
    gone on answer too, through TensorFlow's server at the same address.
    """
    with _answering(cluster.address):
        wait_for([address for address in cluster.addresses if address != cluster.address])


@contextmanager
def _answering(address: str) -> Iterator[None]:
    """Answer each greeting with a byte, which is all that `answers` waits for."""
    ended = threading.Event()

    def answer() -> None:
        server.settimeout(POLL_S)
        while not ended.is_set():
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(1.0)
                    connection.recv(64)
                    connection.sendall(_FIRST_BYTE)

    with closing(_listen(address)) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _listen(address: str) -> socket.socket:
    """Listen on all interfaces, as TensorFlow's server does."""
    port = int(address.rsplit(":", 1)[1])
    try:
        if socket.has_dualstack_ipv6():
            with suppress(OSError):  # this machine may have no IPv6 at all
                family = socket.AF_INET6
                return socket.create_server(("", port), family=family, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise address_taken(address) from error
