"""The copy of the state that a worker of the collective engine holds on its devices.

Any thread can read it at any moment, even while the worker waits for one that is lost. Two stamps,
one before and one after the update of a round, show whether a copy is complete.
"""

import time

import numpy as np
import tensorflow as tf

from paceline.maths.state import State
from paceline.maths.update import Vectors

NUM_TAILS = 8192
"""Steps of which the tails are kept: more than a block, which takes seconds, has."""
TRIES = 5
TRY_EVERY_S = 0.05
"""A running worker is inconsistent only for milliseconds."""


class StateMemory:
    """The vectors of the state on every device of this worker, the stamps, and the last tails."""

    def __init__(
        self, strategy: tf.distribute.Strategy, sizes: dict[str, int], tail_size: int
    ) -> None:
        self._strategy = strategy
        # each device updates its own copy; no write is communicated
        kind = {
            "trainable": False,
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
        }
        with strategy.scope():
            self.vectors = {n: tf.Variable(tf.zeros([size]), **kind) for n, size in sizes.items()}
        with tf.device("/cpu:0"):
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._done = tf.Variable(-1, dtype=tf.int64, trainable=False)
            self._tails = tf.Variable(tf.zeros([NUM_TAILS, tail_size]), trainable=False)
        self._first_tail = 0

    def load(self, state: State) -> None:
        """Replace everything by this state."""
        self._done.assign(-1)
        for name, variable in self.vectors.items():
            for copy in self._strategy.experimental_local_results(variable):
                copy.assign(state.vectors[name])
        tails, table = state.tails[-NUM_TAILS:], np.zeros(self._tails.shape, np.float32)
        self._first_tail = state.step - len(tails)
        if len(tails):
            table[np.arange(self._first_tail, state.step) % NUM_TAILS] = tails
        self._tails.assign(table)
        self._begun.assign(state.step)
        self._done.assign(state.step)

    def state(self, step: int) -> State:
        """Return a copy of the vectors, which are those of `step`."""
        copies = self._strategy.experimental_local_results
        return State(step, {name: copies(each)[0].numpy() for name, each in self.vectors.items()})

    def held(self) -> State | None:
        """Return a whole copy of the newest state with the tails that led to it, or None."""
        for _ in range(TRIES):
            done = int(self._done.numpy())
            state, tails = self.state(done), self._tails.numpy()
            if int(self._begun.numpy()) == done:
                rows = np.arange(max(self._first_tail, done - NUM_TAILS), done) % NUM_TAILS
                return State(done, state.vectors, tails[rows])
            time.sleep(TRY_EVERY_S)
        return None

    def update(self, new: Vectors, last: tf.Tensor) -> tf.Tensor:
        """Write the vectors after step `last` in a replica context; return `last` after that."""
        with tf.control_dependencies(list(new.values())):
            begun = self._begun.assign(last, read_value=False)
        with tf.control_dependencies([begun]):
            written = write_all(self.vectors, new)
        with tf.control_dependencies(written):
            return tf.identity(last)

    def finish(self, first: tf.Tensor, last: tf.Tensor, tails: tf.Tensor) -> None:
        """Keep the tails of the round; then stamp it with `last`, which `update` returned."""
        rows = tf.range(first, last) % NUM_TAILS
        kept = self._tails.scatter_nd_update(rows[:, None], tails[: last - first])
        with tf.control_dependencies([kept]):
            self._done.assign(last, read_value=False)


def write_all(vectors: dict[str, tf.Variable], new: Vectors) -> list[tf.Operation]:
    """Assign every vector; return the operations."""
    return [variable.assign(new[name], read_value=False) for name, variable in vectors.items()]
