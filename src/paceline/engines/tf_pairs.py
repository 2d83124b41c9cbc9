"""TensorFlow's collective operations between two members of a strategy.

TensorFlow knows a group of devices by its key, and an operation of a group by its instance key.
Both must be the same on all members, and mean the same for the life of the processes, also the size
of the vectors. So they are computed from the members, the size and the turn, never counted while a
graph is built: members build different graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from paceline.engines.pairs import ALIGNED

_FIRST_KEY = 1 << 20  # far from the keys that tf.distribute counts
_MOST_MEMBERS = 1 << 13
_MOST_TURNS = 1 << 12


class Collectives:
    """The exchanges of one member: a `Wire` in the graph of its device.

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
        both = tf.raw_ops.CollectiveGatherV2(
            input=own,
            group_size=2,
            group_key=_FIRST_KEY + _MOST_MEMBERS * low + high,
            instance_key=size // ALIGNED * _MOST_TURNS + turn + 1,
            ordering_token=[_new_token() if self._token is None else self._token],
            communication_hint="auto" if self._token is None else "nccl",
            timeout_seconds=0,
            is_stateless=False,
        )
        both = tf.ensure_shape(both, [2 * size])
        if self._is_first(low, high):
            return both
        return tf.concat([both[size:], both[:size]], 0)

    def _is_first(self, low: int, high: int) -> bool:
        """Return whether TensorFlow puts the lower member first.

        It sorts the numbers of workers as texts, with 10 before 2, and devices as numbers.
        """
        workers = low // self._per_worker, high // self._per_worker
        return workers[0] == workers[1] or str(workers[0]) < str(workers[1])

    def join(self, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.concat(pieces, 0)

    def pad(self, vector: tf.Tensor, size: int) -> tf.Tensor:
        missing = size - int(vector.shape[0])
        return tf.pad(vector, [[0, missing]]) if missing else vector


def _new_token() -> tf.Tensor:
    """Return a resource that has no value. Operations that take it keep their order."""
    return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="exchange")
