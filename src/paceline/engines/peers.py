"""What workers on CPUs exchange through sockets: vectors, and sums over the replicas.

Each pair of workers has one connection: on one machine a pair of sockets from the parent process
(`places.local`), between machines TCP (`hosts`). For a sum, a worker sends every other one that
worker's shard of its own sums, adds up its own shard in the tree's order, and sends the result to
all. Workers with GPUs use `network` instead. Only numbers are ever read from a connection.
"""

import os
import selectors
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import tensorflow as tf

from paceline.maths.replica import add
from paceline.maths.sums import ALIGNED, add_subtrees, divided_tree
from paceline.messages import NEIGHBORS

_BUFFER = 4 << 20
"""Bytes that the system may hold for one on this machine: fewer turns between the two processes."""


class WorkerGone(ConnectionError):
    """Another worker has ended in the middle of an exchange."""


class Peers:
    """The connections of worker `index` to all others. `server` answers who else calls."""

    def __init__(
        self, index: int, sockets: Mapping[int, socket.socket], server: socket.socket | None = None
    ) -> None:
        self.index = index
        self.members = len(sockets) + 1
        self._sockets = sockets
        self._server = server
        self._exchanges = 0
        self._vectors: list[np.ndarray] = []
        for each in sockets.values():
            each.setblocking(False)
            if each.family == socket.AF_UNIX:  # TCP adjusts its own, beyond what may be set here
                for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    each.setsockopt(socket.SOL_SOCKET, buffer, _BUFFER)

    def abort(self) -> None:
        """End an exchange in which another thread waits."""
        for each in self._sockets.values():
            with suppress(OSError):  # it has ended already
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections, and answer no longer."""
        for each in self._sockets.values():
            each.close()
        if self._server:
            self._server.shutdown(socket.SHUT_RDWR)  # the thread that answers ends, too

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """Return the vectors of all workers, of equal size and type, as rows in worker order."""
        rows = np.empty((self.members, len(vector)), vector.dtype)
        self._share(vector, rows)
        return rows

    def total(self, replicas: int, own: int, sums: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the sum over all replicas from the subtrees of this worker, whose index is `own`.
        Call it where a graph is built. Each worker adds up a shard; the last one may be shorter."""
        divided, size = divided_tree(replicas, self.members), int(sums[0].shape[0])
        width = -(-size // (self.members * ALIGNED)) * ALIGNED
        shards = [slice(k * width, (k + 1) * width) for k in range(self.members)]
        length = len(range(size)[shards[own]])
        spans = [span for k in sorted(self._sockets) for span in divided[k]]

        def show(*sums: np.ndarray) -> list[np.ndarray]:
            """Give the others their shards; return this worker's shard of their subtrees."""
            rows = {k: [self._take(length) for _ in divided[k]] for k in self._sockets}
            self._swap({k: [each[shards[k]] for each in sums] for k in self._sockets}, rows)
            return [row for k in sorted(rows) for row in rows[k]]

        def join(summed: np.ndarray) -> np.ndarray:
            """Give the others the sum of this worker's shard; return all shards."""
            total = self._take(size)
            self._share(summed, [total[shard] for shard in shards])
            return total

        shown = _call(show, sums, [length] * len(spans)) if spans else []
        known = dict(zip(divided[own], (each[shards[own]] for each in sums), strict=True))
        summed = add_subtrees((0, replicas), known | dict(zip(spans, shown, strict=True)), add)
        return _call(join, [summed], [size])[0]

    def _take(self, size: int) -> np.ndarray:
        """Return a vector that TensorFlow takes without a copy: one that it has left, or a new one,
        whose pages the system fills with zeros, which takes longer than to send it."""
        known, most = self._vectors, size + ALIGNED
        of_size = (k for k in range(len(known)) if len(known[k]) == most)
        if (k := next((k for k in of_size if sys.getrefcount(known[k]) == 2), -1)) < 0:
            known.append(np.empty(most, np.float32))
        first = -known[k].ctypes.data // known[k].itemsize % ALIGNED
        return known[k][first : first + size]

    def _share(self, vector: np.ndarray, places: Sequence[np.ndarray] | np.ndarray) -> None:
        """Give everyone this worker's vector; put those of all workers into their places."""
        places[self.index][:] = vector
        others = {index: [places[index]] for index in self._sockets}
        self._swap({index: [vector] for index in self._sockets}, others)

    def _swap(
        self, given: Mapping[int, list[np.ndarray]], taken: Mapping[int, list[np.ndarray]]
    ) -> None:
        """Send each worker the arrays for it, and fill those that it sends, all at a time."""
        self._exchanges += 1
        with selectors.DefaultSelector() as selector:
            for index, connection in self._sockets.items():
                transfer = _Transfer(index, self._exchanges, given[index], taken[index])
                both = selectors.EVENT_READ | selectors.EVENT_WRITE
                selector.register(connection, both, transfer)
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
    """What is still to be sent to a worker and read from it in one exchange: first the number of
    the exchange and the number of bytes."""

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
        for views in (self._out, self._in):
            while views and not len(views[0]):
                del views[0]
        return selectors.EVENT_WRITE * bool(self._out) | selectors.EVENT_READ * bool(self._in)


def _call(
    function: Callable[..., object], inputs: Sequence[tf.Tensor], sizes: Sequence[int]
) -> list[tf.Tensor]:
    """Call a function of NumPy arrays in the graph; it returns vectors of these sizes."""
    found = tf.numpy_function(function, inputs, [tf.float32] * len(sizes))
    found = found if isinstance(found, list) else [found]
    return [tf.ensure_shape(each, [size]) for each, size in zip(found, sizes, strict=True)]


def find_neighbors(index: int) -> Peers | None:
    """Return the connections that the parent of this process gave it, or None."""
    if not (given := os.environ.pop(NEIGHBORS, "")):  # children do not inherit it
        return None
    others = [int(descriptor) for descriptor in given.split(",")]
    for descriptor in others:
        os.set_inheritable(descriptor, False)  # a child must not keep the connection open
    numbers = [number for number in range(len(others) + 1) if number != index]
    sockets = (socket.socket(fileno=descriptor) for descriptor in others)
    return Peers(index, dict(zip(numbers, sockets, strict=True)))
