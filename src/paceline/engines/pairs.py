"""The sum over the replicas of all members by exchanges between pairs of them.

A member is a device of the collective engine. It has the sums of the subtrees in its share of the
replicas (`maths.sums`), and all members end with the same sum, added in the tree's order.

- Two members: each sends the other its whole vector, which is no more than halves twice.
- 4, 8 ... members whose subtrees are one level of the tree: recursive halving and doubling. At
  distance 1, 2, 4 ... each gives its partner the half that the partner keeps, and adds what it
  gets. Then the halves return the same way. Neighbors first is the order of the tree.
- Any other number: each member adds up one shard of the vector. All send it their subtrees of that
  shard, and it sends the sum back.

A member sends about as much as in a ring, twice its vector, or a bit more if shares have several
subtrees. The algorithms know neither TensorFlow nor a network, so that tests can run them in one
process. `collectives` has the exchanges themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.maths.sums import add_subtrees, divided_tree, level_of

ALIGNED = 16
"""Shards are multiples of this many floats: then TensorFlow cuts a vector without a copy."""
CHUNK = 1_500_000
"""Floats of a chunk of a large vector. TensorFlow sends a message through one buffer and one
thread, so chunks side by side take half the time. Smaller chunks cost more than they save."""

Vector = Any
Add = Callable[[Vector, Vector], Vector]


class Wire(Protocol):
    """How members exchange vectors. `turn` is another number for each exchange of a pair."""

    def swap(self, other: int, own: Vector, turn: int) -> Vector:
        """Return the vectors of this and another member, of equal size, joined in their order."""
        ...

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Join vectors of this member."""
        ...

    def pad(self, vector: Vector, size: int) -> Vector:
        """Add zeros up to this size."""
        ...


class ExactSum:
    """The sum over `replicas` replicas for member `index` of `members`."""

    def __init__(self, replicas: int, members: int, index: int, wire: Wire, add: Add) -> None:
        self._whole = (0, replicas)
        self._spans = divided_tree(replicas, members)
        self._members = members
        self._index = index
        self._wire = wire
        self._add = add
        # one subtree each is not enough: 10 replicas on 8 members can be divided in other ways
        level = tuple((span,) for span in level_of(self._whole, members))
        self._halves = self._spans == level

    def total(self, sums: Sequence[Vector]) -> Vector:
        """Return the sum over all replicas from the sums of this member's subtrees."""
        if self._members == 1:
            return sums[0]
        size = int(sums[0].shape[0])
        chunks = [
            self._total_of_chunk([each[start : start + length] for each in sums], turn)
            for turn, (start, length) in enumerate(cut_into_chunks(size))
        ]
        return chunks[0] if len(chunks) == 1 else self._wire.join(chunks)

    def _total_of_chunk(self, sums: list[Vector], turn: int) -> Vector:
        size = int(sums[0].shape[0])
        unit = ALIGNED if self._members == 2 else self._members * ALIGNED
        padded = [self._wire.pad(each, -(-size // unit) * unit) for each in sums]
        if self._members == 2:
            both = self._wire.swap(1 - self._index, padded[0], 2 * turn)
            total = self._add(both[: both.shape[0] // 2], both[both.shape[0] // 2 :])
        elif self._halves:
            total = self._by_halves(padded[0], turn)
        else:
            total = self._by_shards(padded, turn)
        return total[:size]

    def _by_halves(self, shard: Vector, turn: int) -> Vector:
        distance = 1
        while distance < self._members:
            half = int(shard.shape[0]) // 2
            parts = shard[:half], shard[half:]
            upper = int(bool(self._index & distance))
            given = self._swap(self._index ^ distance, parts[1 - upper], 2 * turn)
            shard = self._add(parts[upper], given)
            distance *= 2
        while distance > 1:
            distance //= 2
            shard = self._wire.swap(self._index ^ distance, shard, 2 * turn + 1)
        return shard

    def _by_shards(self, sums: list[Vector], turn: int) -> Vector:
        width = int(sums[0].shape[0]) // self._members
        own = self._spans[self._index]

        def shard_of(vector: Vector, number: int) -> Vector:
            return vector[number * width : (number + 1) * width]

        known = {span: shard_of(each, self._index) for span, each in zip(own, sums, strict=True)}
        for other in self._others():
            # both send as many shards as the one with more subtrees; what is added is not used
            theirs = self._spans[other]
            count = max(len(own), len(theirs))
            rows = [shard_of(sums[min(k, len(own) - 1)], other) for k in range(count)]
            given = self._swap(other, rows[0] if count == 1 else self._wire.join(rows), 2 * turn)
            known |= {span: shard_of(given, k) for k, span in enumerate(theirs)}
        shards = [add_subtrees(self._whole, known, self._add)] * self._members
        for other in self._others():
            shards[other] = self._swap(other, shards[self._index], 2 * turn + 1)
        return self._wire.join(shards)

    def _others(self) -> list[int]:
        return [other for other in range(self._members) if other != self._index]

    def _swap(self, other: int, own: Vector, turn: int) -> Vector:
        """Return what the other member gave for `own`."""
        both, size = self._wire.swap(other, own, turn), int(own.shape[0])
        return both[size:] if other > self._index else both[:size]


def cut_into_chunks(size: int) -> list[tuple[int, int]]:
    """Return start and length of the chunks of a vector, nearly equal and aligned."""
    count = max(1, size // CHUNK)
    length = -(-size // (count * ALIGNED)) * ALIGNED
    return [(start, min(length, size - start)) for start in range(0, size, length)]
