"""What an actor computes with TensorFlow.

An actor imports this module after it has made the settings that TensorFlow reads at its import.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from paceline.experiment.schedule import rates_table
from paceline.maths.metrics import SIGNALS
from paceline.maths.replica import Core, Round, add
from paceline.maths.state import evaluated_vectors
from paceline.maths.sums import Span, relative, subtree_sums
from paceline.maths.update import Vectors


class Computer:
    """The compiled functions of a core. TensorFlow compiles each once for every share and split."""

    def __init__(self, core: Core, side_by_side: int, ahead: int = 0) -> None:
        self._core = core
        self._side_by_side, self._ahead = side_by_side, ahead
        self._sums = tf.function(self._sum_subtrees, autograph=False)
        self._finish = tf.function(core.finish_round, autograph=False)
        self._evaluate = tf.function(core.evaluate_batches, autograph=False)

    def load(self, vectors: dict[str, np.ndarray]) -> Vectors:
        """Return copies as tensors; the arrays are views of an object in Ray's store."""
        return {name: tf.constant(np.array(vector)) for name, vector in vectors.items()}

    def compute(
        self, vectors: Vectors, now: Span, spans: tuple[Span, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of subtrees of replicas for the round of steps `now`, a row for each,
        and a copy of their tails."""
        first, last, start = (tf.constant(n, tf.int64) for n in (*now, spans[0][0]))
        signals = tf.zeros([len(SIGNALS)])
        this_round = Round(vectors, first, last, self._table(now), signals)
        sums = np.asarray(self._sums(this_round, start, relative(spans)))
        return sums, sums[:, -self._core.tail_size * self._core.plan.round_steps :].copy()

    def _sum_subtrees(
        self, now: Round, first_replica: tf.Tensor, shape: tuple[Span, ...]
    ) -> tf.Tensor:
        turns = shape[-1][1], self._side_by_side, self._ahead
        results = self._core.round_vectors(now, first_replica, *turns)
        return tf.stack(subtree_sums(results, shape, add))

    def finish(self, vectors: Vectors, mean: np.ndarray, now: Span) -> Vectors:
        """Return the vectors after the round of steps `now`, from the mean over all replicas."""
        new: Vectors = self._finish(vectors, tf.constant(mean), self._table(now))[0]
        return new

    def evaluate(self, vectors: Vectors, split: str, start: int, stop: int) -> np.ndarray:
        """Return the rows of the evaluation batches [start, stop)."""
        params, stats = (vectors[name] for name in evaluated_vectors(vectors))
        rows = [
            self._evaluate(split, params, stats, tf.constant(first, tf.int64), self._side_by_side)
            for first in range(start, stop, self._side_by_side)
        ]
        return np.concatenate(rows)[: stop - start]

    def _table(self, now: Span) -> tf.Tensor:
        """Return the rates of a round; a short one is padded, so that nothing is compiled again."""
        table = rates_table(self._core.experiment, self._core.plan, *now)
        return tf.constant(np.pad(table, ((0, self._core.plan.round_steps - len(table)), (0, 0))))
