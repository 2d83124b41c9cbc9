"""Where tasks that a platform starts minutes apart wait for each other.

TensorFlow's own call waits too, but no other thread of the process runs meanwhile: nothing could
show that this process is alive. So it is made only when every other task has answered.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from paceline.engines.probe import find_silent
from paceline.errors import address_taken
from paceline.job import Cluster

POLL_S = 0.2


def wait_for_tasks(cluster: Cluster) -> None:
    """Return when every other worker has answered. This one answers meanwhile.

    Workers that have gone on answer too, by TensorFlow's server at the same address.
    """
    waiting = [address for address in cluster.addresses if address != cluster.address]
    with _answering(cluster.address):
        while waiting := find_silent(waiting):
            time.sleep(POLL_S)


@contextmanager
def _answering(address: str) -> Iterator[None]:
    """Answer at this address until the block ends."""
    ended = threading.Event()
    with closing(_listen(address)) as server:
        thread = threading.Thread(target=_answer, args=(server, ended), daemon=True)
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


def _answer(server: socket.socket, ended: threading.Event) -> None:
    """Answer each greeting with a byte, which is all that `probe.answers` waits for."""
    server.settimeout(POLL_S)
    while not ended.is_set():
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.settimeout(1.0)
                connection.recv(64)
                connection.sendall(b"\0")
