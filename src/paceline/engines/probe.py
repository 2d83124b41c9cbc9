"""Whether the tasks of a cluster answer at their addresses, and how they wait for each other.

A task that cannot train, for a reason that only a person can correct, tells it for some seconds at
its address: the others end with the same error, and no platform restarts them.
"""

import errno
import math
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

from paceline.errors import UserError, address_taken
from paceline.job import Cluster

POLL_S = 0.2
_TIMEOUT_S = 2.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FIRST_BYTE = b"\0"
"""Of the length of gRPC's first frame; a web server's answer begins with HTTP."""
_REASON = b"paceline cannot train: "
_LONGEST_REASON = 4096
TELL_S = 25.0
"""How long a task tells why it cannot train: others ask every 10 s until training begins."""
_EMPTY_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def ask(address: str) -> str | None:
    """Return an empty text if a worker's gRPC server answers a greeting, or why it cannot train. A
    connection alone is not enough: the kernel accepts it for a stopped process too."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S) as connection:
            connection.sendall(_HTTP2_GREETING + _EMPTY_SETTINGS)
            with connection.makefile("rb") as answer:
                if (first := answer.read(1)) == _REASON[:1]:
                    first += answer.read(_LONGEST_REASON)
    except OSError:
        return None
    if first.startswith(_REASON):
        return first.removeprefix(_REASON).decode(errors="replace")
    return "" if first == _FIRST_BYTE else None


def find_silent(addresses: Sequence[str]) -> list[str]:
    """Return those that do not answer; all are asked at the same time. Raises UserError if one of
    them cannot train."""
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        found = dict(zip(addresses, pool.map(ask, addresses), strict=True))
    if reasons := {address: reason for address, reason in found.items() if reason}:
        first = min(reasons, key=lambda each: (len(reasons[each]), each))  # others only repeat it
        raise UserError(f"the worker at {first} cannot train: {reasons[first]}")
    return [address for address, answer in found.items() if answer is None]


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


def tell(address: str, reason: str) -> None:
    """Tell all who ask within `TELL_S` why the task of this address cannot train."""
    with suppress(UserError), _answering(address, (_REASON + reason.encode())[:_LONGEST_REASON]):
        time.sleep(TELL_S)


@contextmanager
def _answering(address: str, content: bytes = _FIRST_BYTE) -> Iterator[None]:
    """Answer each greeting; a byte is all that a worker that trains later has to say."""
    ended = threading.Event()

    def answer() -> None:
        server.settimeout(POLL_S)
        while not ended.is_set():
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(1.0)
                    connection.recv(64)
                    connection.sendall(content)

    with closing(open_server(address)) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def keep_alive(connection: socket.socket) -> None:
    """Notice within half a minute that the other host has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def open_server(address: str) -> socket.socket:
    """Listen at the port of an address: on all interfaces, or for this machine alone."""
    host, port = address.rsplit(":", 1)[0], int(address.rsplit(":", 1)[1])
    try:
        if host in ("localhost", "127.0.0.1"):
            return socket.create_server(("127.0.0.1", port))
        if socket.has_dualstack_ipv6():
            with suppress(OSError):  # this machine may have no IPv6 at all
                family = socket.AF_INET6
                return socket.create_server(("", port), family=family, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise address_taken(address) from error
