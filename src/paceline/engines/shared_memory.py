"""What workers on one machine exchange through shared memory: vectors, and sums over the replicas.

The parent gives each worker the memory and a socket to every other one (`places.local`). For a sum,
each worker writes the sums of its subtrees there, adds up one shard of all of them in the tree's
order, and reads the shards of the others.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from paceline.maths.replica import add
from paceline.maths.sums import Span, add_subtrees, divided_tree
from paceline.messages import NEIGHBORS

ALIGNED = 16
"""Shards are multiples of this many floats: then TensorFlow cuts a vector without a copy."""
PIECE = 1 << 18
"""Floats that one worker gives the others at a time in `gather`."""


class WorkerGone(ConnectionError):
    """Another worker of this machine has ended in the middle of an exchange."""


class Neighbors:
    """The memory that worker `index` shares with the others, and its sockets to them."""

    def __init__(self, index: int, memory: int, sockets: Mapping[int, socket.socket]) -> None:
        self.index = index
        self.members = len(sockets) + 1
        self._memory = memory
        self._sockets = sockets
        self._meetings = 0
        self._tables: dict[tuple[int, int], np.ndarray] = {}
        self._size = 0

    def close(self) -> None:
        """End the connections to the others."""
        for each in self._sockets.values():
            each.close()

    def table(self, rows: int, length: int) -> np.ndarray:
        """Return a table of floats in the shared memory: the same whenever its shape is the same.

        Workers ask for the same shapes in the same order. Different tables never overlap: a worker
        may be ahead in an exchange of one shape while another still reads a sum of another shape.
        """
        if (rows, length) not in self._tables:
            size = -(-4 * rows * length // mmap.PAGESIZE) * mmap.PAGESIZE
            # unlike ftruncate, it never shrinks, and fails if there is no room
            os.posix_fallocate(self._memory, 0, self._size + size)
            memory = mmap.mmap(self._memory, size, offset=self._size)
            floats = np.frombuffer(memory, np.float32, rows * length)
            self._tables[rows, length] = floats.reshape(rows, length)
            self._size += size
        return self._tables[rows, length]

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """Return the vectors of all workers, of equal size and type, as rows in worker order."""
        table, own = self.table(self.members, PIECE).view(np.uint8), vector.view(np.uint8)
        pieces = []
        for start in range(0, len(own), table.shape[1]):
            piece = own[start : start + table.shape[1]]
            table[self.index, : len(piece)] = piece
            self.meet()
            pieces.append(table[:, : len(piece)].copy())
            self.meet()  # everyone has read it
        return np.concatenate(pieces, 1).view(vector.dtype)

    def total(self, replicas: int, own: int, sums: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the sum over all replicas from the subtrees of this worker, whose index is `own`.

        Call it where a graph is built.
        """
        divided, size = divided_tree(replicas, self.members), int(sums[0].shape[0])
        first_row, rows = sum(map(len, divided[:own])), sum(map(len, divided))
        width = shard_width(size, self.members)
        # a row for the vector of each subtree, and the sum's
        table = self.table(rows + 1, self.members * width)
        shard = slice(own * width, (own + 1) * width)

        def show(*sums: np.ndarray) -> list[np.ndarray]:
            for row, each in enumerate(sums, first_row):
                table[row, :size] = each
            self.meet()
            # views: nobody but this worker uses this shard until all have met again
            return list(table[:-1, shard])

        def join(summed: np.ndarray) -> np.ndarray:
            table[-1, shard] = summed
            self.meet()
            # a copy: TensorFlow may write its next result into the vector that it gets
            return table[-1, :size].copy()

        return add_shards(divided, sums, width, show, join)

    def meet(self) -> None:
        """Return when every other worker has come here too."""
        self._meetings += 1
        number = bytes([self._meetings % 256])
        try:
            for each in self._sockets.values():
                each.sendall(number)
            for index, each in self._sockets.items():
                found = each.recv(1)
                if not found:
                    raise WorkerGone(f"worker {index} is gone")
                if found != number:
                    raise RuntimeError(f"worker {index} is in another exchange than this worker")
        except OSError as error:
            raise WorkerGone(str(error)) from error


def find_neighbors(index: int) -> Neighbors | None:
    """Return what the parent of this process gave it, or None if workers must use the network.

    The variable is removed so that children do not inherit it.
    """
    if not (given := os.environ.pop(NEIGHBORS, "")):
        return None
    memory, *others = map(int, given.split(","))
    for descriptor in (memory, *others):
        os.set_inheritable(descriptor, False)  # a child must not keep the connection open
    numbers = [number for number in range(len(others) + 1) if number != index]
    sockets = (socket.socket(fileno=descriptor) for descriptor in others)
    return Neighbors(index, memory, dict(zip(numbers, sockets, strict=True)))


def shard_width(size: int, members: int) -> int:
    """Return how many floats of a vector each worker adds up; the last one may have fewer."""
    return -(-size // (members * ALIGNED)) * ALIGNED


def add_shards(
    divided: Sequence[Sequence[Span]],
    sums: Sequence[tf.Tensor],
    width: int,
    show: Callable[..., list[np.ndarray]],
    join: Callable[[np.ndarray], np.ndarray],
) -> tf.Tensor:
    """Return the sum over all replicas, of whose vectors this worker adds up a shard.

    `show` gives the others the sums of this worker's subtrees, and returns the shard of all. `join`
    gives them the sum of the shard, and returns that of the vectors.
    """
    spans = [span for spans in divided for span in spans]
    known = dict(zip(spans, _call(show, sums, [width] * len(spans)), strict=True))
    tree = spans[0][0], spans[-1][1]
    return _call(join, [add_subtrees(tree, known, add)], [int(sums[0].shape[0])])[0]


def _call(
    function: Callable[..., object], inputs: Sequence[tf.Tensor], sizes: Sequence[int]
) -> list[tf.Tensor]:
    """Call a function of NumPy arrays in the graph; it returns vectors of these sizes."""
    found = tf.numpy_function(function, inputs, [tf.float32] * len(sizes))
    found = found if isinstance(found, list) else [found]
    return [tf.ensure_shape(each, [size]) for each, size in zip(found, sizes, strict=True)]
