"""What workers of several machines exchange over TCP: vectors, and sums over the replicas.

Each worker listens at its address of the cluster, and each pair of workers has one connection. For
a sum, a worker sends every other one that worker's shard of its own sums, adds up its own shard in
the tree's order, and sends the result to all. Workers with GPUs use `network` instead.

Both ends of a connection prove that they know the same token. Only numbers are ever read from it.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

import numpy as np
import tensorflow as tf

from paceline.engines.probe import POLL_S, find_silent, keep_alive, open_server
from paceline.engines.shared_memory import WorkerGone, add_shards, shard_width
from paceline.errors import UserError
from paceline.job import Cluster
from paceline.maths.sums import divided_tree
from paceline.messages import TOKEN

_HANDSHAKE_S = 5
_NOT_A_WORKER = (OSError, EOFError, AssertionError, AuthenticationError, struct.error)
"""What a handshake with something else raises, or one that nobody continues."""
_BUFFER = 4 << 20
"""Bytes that the system may hold for a connection: fewer turns between the two processes."""


class Hosts:
    """The connections of worker `index` to all others."""

    def __init__(
        self, index: int, sockets: Mapping[int, socket.socket], server: socket.socket
    ) -> None:
        self.index = index
        self._server = server
        self.members = len(sockets) + 1
        self._sockets = sockets
        self._exchanges = 0
        for each in sockets.values():
            each.setblocking(False)

    def close(self) -> None:
        """End all connections, and answer no longer."""
        for each in self._sockets.values():
            each.close()
        self._server.shutdown(socket.SHUT_RDWR)  # the thread that answers ends, too

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """Return the vectors of all workers, of equal size and type, as rows in worker order."""
        rows = np.empty((self.members, len(vector)), vector.dtype)
        rows[self.index] = vector
        self._swap(
            {index: [vector] for index in self._sockets},
            {index: [rows[index]] for index in self._sockets},
        )
        return rows

    def total(self, replicas: int, own: int, sums: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the sum over all replicas from the subtrees of this worker, whose index is `own`.

        Call it where a graph is built.
        """
        divided, size = divided_tree(replicas, self.members), int(sums[0].shape[0])
        width = shard_width(size, self.members)
        shards = [slice(k * width, (k + 1) * width) for k in range(self.members)]

        def show(*sums: np.ndarray) -> list[np.ndarray]:
            mine = [each[shards[own]].copy() for each in sums]
            rows = {k: [np.empty_like(mine[0]) for _ in divided[k]] for k in self._sockets}
            self._swap({k: [each[shards[k]] for each in sums] for k in self._sockets}, rows)
            rows[own] = mine
            return [row for k in range(self.members) for row in rows[k]]

        def join(summed: np.ndarray) -> np.ndarray:
            total = np.empty(size, np.float32)
            total[shards[own]] = summed
            self._swap(
                {index: [summed] for index in self._sockets},
                {index: [total[shards[index]]] for index in self._sockets},
            )
            return total

        own_width = len(range(size)[shards[own]])
        return add_shards(divided, sums, own_width, show, join)

    def _swap(
        self, given: Mapping[int, list[np.ndarray]], taken: Mapping[int, list[np.ndarray]]
    ) -> None:
        """Send each worker the arrays for it, and fill those that it sends, all at a time."""
        self._exchanges += 1
        with selectors.DefaultSelector() as selector:
            waiting = [
                _Transfer(index, self._exchanges, given[index], taken[index])
                for index in self._sockets
            ]
            for each in waiting:
                both = selectors.EVENT_READ | selectors.EVENT_WRITE
                selector.register(self._sockets[each.index], both, each)
            try:
                while selector.get_map():
                    for key, events in selector.select():
                        wanted = key.data.step(key.fileobj, events)
                        if not wanted:
                            selector.unregister(key.fileobj)
                        elif wanted != key.events:
                            selector.modify(key.fileobj, wanted, key.data)
            except OSError as error:
                raise WorkerGone(str(error)) from error


class _Transfer:
    """What is still to be sent to a worker and to be read from it in one exchange.

    It begins with the number of the exchange and the number of bytes.
    """

    def __init__(
        self, index: int, number: int, given: list[np.ndarray], taken: list[np.ndarray]
    ) -> None:
        self.index = index
        self._expected = struct.pack("<QQ", number, sum(each.nbytes for each in taken))
        self._begin = bytearray(len(self._expected))
        begin = struct.pack("<QQ", number, sum(each.nbytes for each in given))
        self._out = [memoryview(begin), *(each.view(np.uint8).data for each in given)]
        self._in = [memoryview(self._begin), *(each.view(np.uint8).data for each in taken)]

    def step(self, connection: socket.socket, events: int) -> int:
        """Send and read what is possible now; return the events that this still waits for."""
        with suppress(BlockingIOError):
            if events & selectors.EVENT_WRITE:
                self._out[0] = self._out[0][connection.send(self._out[0]) :]
            if events & selectors.EVENT_READ:
                count = connection.recv_into(self._in[0])
                if not count:
                    raise WorkerGone(f"worker {self.index} is gone")
                self._in[0] = self._in[0][count:]
                if not self._in[0] and self._begin != self._expected:
                    raise RuntimeError(
                        f"worker {self.index} is in another exchange than this worker"
                    )
        self._out, self._in = (_without_done(each) for each in (self._out, self._in))
        return selectors.EVENT_WRITE * bool(self._out) | selectors.EVENT_READ * bool(self._in)


def _without_done(views: list[memoryview]) -> list[memoryview]:
    """Return the views from the first one that is not empty."""
    first = next((k for k, view in enumerate(views) if len(view)), len(views))
    return views[first:]


def meet(cluster: Cluster) -> Hosts:
    """Connect to every other worker; return when all are there. Tasks may start minutes apart.

    A worker calls those before it and is called by those after it. Once it has met all, it only
    shows that it is there: a worker of a later attempt calls again until the others have restarted.
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
        called = {index: _call(index, cluster, token) for index in range(cluster.index)}
        while missing := expected - callers.keys():
            find_silent([cluster.addresses[index] for index in missing])  # one may say why
            with changed:
                changed.wait_for(lambda: callers.keys() == expected, timeout=1.0)
    except UserError:
        server.shutdown(socket.SHUT_RDWR)
        raise
    return Hosts(cluster.index, called | callers, server)


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


def _call(index: int, cluster: Cluster, token: bytes) -> socket.socket:
    """Return a connection to a worker, once it is there and lets this one join."""
    address = cluster.addresses[index]
    host, port = address.rsplit(":", 1)
    while True:
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
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER)
    return Connection(os.dup(end.fileno()))
