"""The sum over the replicas of all members by exchanges between pairs of them.

A member is a device of the collective engine. It has the sums of the subtrees in its share of the
replicas (`maths.sums`), and all members end with the same sum, added in the tree's order.

- Two members: each sends the other its whole vector, which is no more than halves twice.
- More: each member adds up one shard of the vector. All send it their subtrees of that shard, and
  it sends the sum back.

A member sends about as much as in a ring, twice its vector, or a bit more if shares have several
subtrees. The algorithms do not know how vectors are sent, so that tests can run them in one
process. `Collectives` has the exchanges themselves, as operations of TensorFlow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from paceline.experiment.fields import Json
from paceline.maths.sums import ALIGNED, Add, add_subtrees, divided_tree

CHUNK = 1_500_000
"""Floats of a chunk of a large vector. TensorFlow sends a message through one buffer and one
thread, so chunks side by side take half the time. Smaller chunks cost more than they save."""

_FIRST_KEY = 1 << 20  # far from the keys that tf.distribute counts
_MOST_MEMBERS = 1 << 13
_MOST_TURNS = 1 << 12


Swap = Callable[[int, tf.Tensor, int], tf.Tensor]
"""(other member, own vector, turn) -> the vectors of both members, of equal size, joined in their
order. The turn is a different number for each exchange of a pair."""


@dataclass(frozen=True)
class ExactSum:
    """The sum over `replicas` replicas for member `index` of `members`."""

    replicas: int
    members: int
    index: int
    swap: Swap
    add: Add[tf.Tensor]
    reduce: Swap | None = None
    """Like `swap`, but returns the sum of both vectors, whose bits no order changes."""

    def total(self, sums: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the sum over all replicas from the sums of this member's subtrees."""
        if self.members == 1:
            return sums[0]
        chunks = [
            self._total_of_chunk([each[start : start + length] for each in sums], turn)
            for turn, (start, length) in enumerate(cut_into_chunks(int(sums[0].shape[0])))
        ]
        return chunks[0] if len(chunks) == 1 else tf.concat(chunks, 0)

    def _total_of_chunk(self, sums: list[tf.Tensor], turn: int) -> tf.Tensor:
        size = int(sums[0].shape[0])
        unit = ALIGNED if self.members == 2 else self.members * ALIGNED
        padded = [tf.pad(each, [[0, -size % unit]]) if size % unit else each for each in sums]
        if self.members == 2 and self.reduce:
            total = self.reduce(1 - self.index, padded[0], 2 * turn + 1)
        elif self.members == 2:
            both = self.swap(1 - self.index, padded[0], 2 * turn)
            total = self.add(both[: both.shape[0] // 2], both[both.shape[0] // 2 :])
        else:
            total = self._by_shards(padded, turn)
        return total[:size]

    def _by_shards(self, sums: list[tf.Tensor], turn: int) -> tf.Tensor:
        width = int(sums[0].shape[0]) // self.members
        spans = divided_tree(self.replicas, self.members)
        own = spans[self.index]

        def shard_of(vector: tf.Tensor, number: int) -> tf.Tensor:
            return vector[number * width : (number + 1) * width]

        known = {span: shard_of(each, self.index) for span, each in zip(own, sums, strict=True)}
        others = [other for other in range(self.members) if other != self.index]
        for other in others:
            # both send as many shards as the one with more subtrees; what is added is not used
            theirs = spans[other]
            count = max(len(own), len(theirs))
            rows = [shard_of(sums[min(k, len(own) - 1)], other) for k in range(count)]
            given = self._take(other, rows[0] if count == 1 else tf.concat(rows, 0), 2 * turn)
            known |= {span: shard_of(given, k) for k, span in enumerate(theirs)}
        shards = [add_subtrees((0, self.replicas), known, self.add)] * self.members
        for other in others:
            shards[other] = self._take(other, shards[self.index], 2 * turn + 1)
        return tf.concat(shards, 0)

    def _take(self, other: int, own: tf.Tensor, turn: int) -> tf.Tensor:
        """Return what the other member gave for `own`."""
        both, size = self.swap(other, own, turn), int(own.shape[0])
        return both[size:] if other > self.index else both[:size]


def cut_into_chunks(size: int) -> list[tuple[int, int]]:
    """Return start and length of the chunks of a vector, nearly equal and aligned."""
    count = max(1, size // CHUNK)
    length = -(-size // (count * ALIGNED)) * ALIGNED
    return [(start, min(length, size - start)) for start in range(0, size, length)]


class Collectives:
    """The exchanges of one member of a strategy: a `Swap` in the graph of its device.

    TensorFlow knows a group of devices by its key, and an operation of a group by its instance key.
    Both must be the same on all members, and mean the same for the life of the processes, also the
    size of the vectors. So they are computed from the members, the size and the turn, never counted
    while a graph is built: members build different graphs.

    A `tf.function` runs operations with the same token one after another, and so all those without
    a token. On CPUs each exchange has its own token, so that exchanges run side by side, also those
    of several devices of one worker. NCCL needs the same order on all members: if `ordered`, all
    exchanges of a device have the same token.
    """

    def __init__(self, index: int, per_worker: int, ordered: bool = False) -> None:
        self._index = index
        self._per_worker = per_worker
        self._token = _new_token() if ordered else None

    def swap(self, other: int, own: tf.Tensor, turn: int) -> tf.Tensor:
        low, high = sorted((self._index, other))
        size = int(own.shape[0])
        both = tf.raw_ops.CollectiveGatherV2(**self._call(other, own, turn))
        both = tf.ensure_shape(both, [2 * size])
        return both if self._is_first(low, high) else tf.concat([both[size:], both[:size]], 0)

    def reduce(self, other: int, own: tf.Tensor, turn: int) -> tf.Tensor:
        """Return the sum of both vectors. On GPUs this is one call of NCCL, without a copy."""
        call = self._call(other, own, turn)
        return tf.raw_ops.CollectiveReduceV2(**call, merge_op="Add", final_op="Id")

    def _call(self, other: int, own: tf.Tensor, turn: int) -> Json:
        """Return the arguments of an exchange with another member."""
        low, high = sorted((self._index, other))
        return {
            "input": own,
            "group_size": 2,
            "group_key": _FIRST_KEY + _MOST_MEMBERS * low + high,
            "instance_key": int(own.shape[0]) // ALIGNED * _MOST_TURNS + turn + 1,
            "ordering_token": [_new_token() if self._token is None else self._token],
            "communication_hint": "auto" if self._token is None else "nccl",
            "timeout_seconds": 0,
            "is_stateless": False,
        }

    def _is_first(self, low: int, high: int) -> bool:
        """Return whether TensorFlow puts the lower member first. It sorts the numbers of workers as
        texts, with 10 before 2, and devices as numbers."""
        workers = low // self._per_worker, high // self._per_worker
        return workers[0] == workers[1] or str(workers[0]) < str(workers[1])


def _new_token() -> tf.Tensor:
    """Return a resource that has no value. Operations that take it keep their order."""
    return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="exchange")
