"""How workers of several machines connect over TCP: each listens at its address of the cluster.

Both ends of a connection prove that they know the same token.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from paceline.engines.peers import Peers, WorkerGone
from paceline.engines.probe import POLL_S, find_silent, keep_alive, open_server
from paceline.errors import UserError
from paceline.job import Cluster
from paceline.messages import TOKEN

_HANDSHAKE_S = 5
_NOT_A_WORKER = (OSError, EOFError, AssertionError, AuthenticationError, struct.error)
"""What a handshake with something else raises, or one that nobody continues."""


def meet(cluster: Cluster, ended: Callable[[], bool] = lambda: False) -> Peers:
    """Connect to every other worker; return when all are there. Tasks may start minutes apart.

    A worker calls those before it and is called by those after it. Once it has met all, it only
    shows that it is there: a worker of a later attempt calls again until the others have restarted.
    Raises WorkerGone once this attempt has `ended`.
    """
    token = os.environ.get(TOKEN, "paceline").encode()
    callers, changed = dict[int, socket.socket](), threading.Condition()
    expected = set(range(cluster.index + 1, len(cluster.addresses)))

    def join(index: int, caller: socket.socket, connection: Connection) -> bool:
        with changed:
            joins = index in expected and callers.keys() != expected
            if joins:
                connection.send_bytes(b"welcome")  # before anything of an exchange
                callers[index] = caller
                changed.notify()
            return joins

    server = open_server(cluster.address)
    threading.Thread(target=_answer, args=(server, token, join), daemon=True).start()
    try:
        called = {index: _call(index, cluster, token, ended) for index in range(cluster.index)}
        while missing := expected - callers.keys():
            if ended():
                raise WorkerGone("this attempt has ended")
            find_silent([cluster.addresses[index] for index in missing])  # one may say why
            with changed:
                changed.wait_for(lambda: callers.keys() == expected, timeout=1.0)
    except (UserError, WorkerGone):
        server.shutdown(socket.SHUT_RDWR)
        raise
    return Peers(cluster.index, called | callers, server)


def _answer(server: socket.socket, token: bytes, join: Callable[..., bool]) -> None:
    """Let workers that know the token join. A probe needs only the first byte of the challenge."""
    while True:
        try:
            caller, _ = server.accept()
        except OSError:  # it is shut down
            return server.close()
        joined = False
        with suppress(*_NOT_A_WORKER), _handshake(caller) as connection:
            deliver_challenge(connection, token)
            answer_challenge(connection, token)
            (index,) = struct.unpack("<Q", connection.recv_bytes(8))
            joined = join(index, caller, connection)
        if not joined:
            caller.close()


def _call(index: int, cluster: Cluster, token: bytes, ended: Callable[[], bool]) -> socket.socket:
    """Return a connection to a worker, once it is there and lets this one join."""
    address = cluster.addresses[index]
    host, port = address.rsplit(":", 1)
    while True:
        if ended():
            raise WorkerGone("this attempt has ended")
        with suppress(*_NOT_A_WORKER):
            called = socket.create_connection((host.strip("[]"), int(port)), _HANDSHAKE_S)
            try:
                with _handshake(called) as connection:
                    answer_challenge(connection, token)
                    deliver_challenge(connection, token)
                    connection.send_bytes(struct.pack("<Q", cluster.index))
                    connection.recv_bytes(16)
                return called
            except AuthenticationError:
                raise UserError(
                    f"{cluster.name} and worker {index} at {address} have different tokens; give "
                    f"all tasks the same value of the environment variable {TOKEN}, or none"
                ) from None
            except _NOT_A_WORKER:
                called.close()
        find_silent([address])  # it may say why it cannot train
        time.sleep(POLL_S)


def _handshake(end: socket.socket) -> Connection:
    """Return a connection of bytes, for a moment, over one end of a socket that then exchanges."""
    end.settimeout(None)
    keep_alive(end)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    timeout = struct.pack("ll", _HANDSHAKE_S, 0)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    return Connection(os.dup(end.fileno()))
