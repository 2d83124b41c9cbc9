"""The sum over the replicas of workers on one machine, through shared memory.

The parent gives each worker the memory and a socket to every other one (`places.local`). Each
worker writes the sums of its subtrees there, adds up one shard of all of them in the tree's order,
and reads the shards of the others.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from paceline.maths.replica import add
from paceline.maths.sums import add_subtrees, divided_tree
from paceline.messages import NEIGHBORS

ALIGNED = 16
"""Shards are multiples of this many floats: then TensorFlow cuts a vector without a copy."""


class WorkerGone(ConnectionError):
    """Another worker of this machine has ended in the middle of an exchange."""


class Neighbors:
    """The memory that this worker shares with the others, and its sockets to them."""

    def __init__(self, memory: int, sockets: Mapping[int, socket.socket]) -> None:
        self._memory = memory
        self._sockets = sockets
        self._meetings = 0
        self._regions: dict[int, np.ndarray] = {}
        self._size = 0

    def floats(self, count: int) -> np.ndarray:
        """Return this many floats of the shared memory: the same whenever the count is the same.

        Workers ask for the same counts in the same order. Different counts never overlap: a worker
        may be ahead in an exchange of one size while another still reads a sum of another size.
        """
        if count not in self._regions:
            size = -(-4 * count // mmap.PAGESIZE) * mmap.PAGESIZE
            # unlike ftruncate, it never shrinks, and fails if there is no room
            os.posix_fallocate(self._memory, 0, self._size + size)
            region = mmap.mmap(self._memory, size, offset=self._size)
            self._regions[count] = np.frombuffer(region, np.float32, count)
            self._size += size
        return self._regions[count]

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
    return Neighbors(memory, dict(zip(numbers, sockets, strict=True)))


def shared_sum(
    replicas: int, workers: int, index: int, neighbors: Neighbors, sums: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Return the sum over all replicas from the sums of the subtrees of worker `index`."""
    divided = divided_tree(replicas, workers)
    spans, first_row = [span for spans in divided for span in spans], sum(map(len, divided[:index]))
    size, rows = int(sums[0].shape[0]), len(spans) + 1
    width = -(-size // (workers * ALIGNED)) * ALIGNED
    length = workers * width
    # a place for the vector of each subtree, and the sum's
    places = list(neighbors.floats(rows * length).reshape(rows, length))
    own = places[first_row : first_row + len(sums)]
    shard = slice(index * width, (index + 1) * width)

    def show(*sums: np.ndarray) -> list[np.ndarray]:
        for place, each in zip(own, sums, strict=True):
            np.copyto(place[:size], each)
        neighbors.meet()
        # views: nobody but this worker uses this shard until all have met again
        return [place[shard] for place in places[:-1]]

    def join(summed: np.ndarray) -> np.ndarray:
        np.copyto(places[-1][shard], summed)
        neighbors.meet()
        # a copy: TensorFlow may write its next result into the vector that it gets
        return places[-1][:size].copy()

    shards = _call(show, sums, [width] * len(spans))
    known = dict(zip(spans, shards, strict=True))
    (total,) = _call(join, [add_subtrees((0, replicas), known, add)], [size])
    return total


def _call(
    function: Callable[..., object], inputs: Sequence[tf.Tensor], sizes: Sequence[int]
) -> list[tf.Tensor]:
    """Call a function of NumPy arrays in the graph; it returns vectors of these sizes."""
    found = tf.numpy_function(function, inputs, [tf.float32] * len(sizes))
    found = found if isinstance(found, list) else [found]
    return [tf.ensure_shape(each, [size]) for each, size in zip(found, sizes, strict=True)]
