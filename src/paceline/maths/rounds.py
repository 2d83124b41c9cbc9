"""A round as every engine computes it: the vectors of some replicas, and the state after the mean.

A round is the steps between two exchanges. How replicas exchange vectors is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import tensorflow as tf

from paceline.experiment.schedule import Rates
from paceline.maths.losses import LOSS_SCALE
from paceline.maths.metrics import Tail, tail_scale
from paceline.maths.opaque import opaque
from paceline.maths.replica import Core, Step
from paceline.maths.state import STATISTICS
from paceline.maths.update import Vectors


@dataclass(frozen=True)
class Round:
    """The steps [first, last) from the state `vectors`, as tensors."""

    vectors: Vectors
    first: tf.Tensor
    last: tf.Tensor
    table: tf.Tensor
    """The rates of the steps (`rates_table`)."""
    signals: tf.Tensor


class Rounds(Protocol):
    """The two halves of a round, for one method of sync."""

    def replica_vector(self, now: Round, replica: tf.Tensor) -> tf.Tensor:
        """Return what one replica contributes to the mean."""
        ...

    def finish(
        self, vectors: Vectors, mean: tf.Tensor, table: tf.Tensor
    ) -> tuple[Vectors, tf.Tensor]:
        """Return the vectors after the round, from the mean over replicas, and a tail per step."""
        ...


def build_rounds(core: Core) -> Rounds:
    """Return the rounds of the experiment's method of sync."""
    return WeightRounds(core) if core.experiment.sync.method == "weights" else GradientRounds(core)


def replica_vectors(
    rounds: Rounds, now: Round, first_replica: tf.Tensor, count: int, side_by_side: int
) -> list[tf.Tensor]:
    """Return what `count` replicas contribute, computed `side_by_side` at a time."""
    numbers = [tf.cast(first_replica + k, tf.int64) for k in range(count)]
    return run_side_by_side([partial(rounds.replica_vector, now, n) for n in numbers], side_by_side)


def run_side_by_side(
    replicas: Sequence[Callable[[], tf.Tensor]], side_by_side: int
) -> list[tf.Tensor]:
    """Put the computations of several replicas into a graph, `side_by_side` of them at a time.

    Without the control dependencies TensorFlow would start all of them at once, and more replicas
    than cores take more memory and more time.
    """
    results: list[tf.Tensor] = []
    for k, replica in enumerate(replicas):
        with tf.control_dependencies([results[k - side_by_side]] if k >= side_by_side else []):
            results.append(replica())
    return results


class GradientRounds:
    """Rounds of one step: the gradients of each replica, then the update by their mean."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def replica_vector(self, now: Round, replica: tf.Tensor) -> tf.Tensor:
        loss_scale = now.vectors[LOSS_SCALE][0] if LOSS_SCALE in now.vectors else None
        step = Step(now.first, replica, now.signals, loss_scale)
        return self._core.replica_vector(now.vectors["params"], now.vectors["stats"], step)

    def finish(
        self, vectors: Vectors, mean: tf.Tensor, table: tf.Tensor
    ) -> tuple[Vectors, tf.Tensor]:
        tail = mean[-len(Tail) :] * tail_scale(self._core.experiment.replicas)
        return self._core.apply(vectors, mean, Rates.of_row(table[0])), tail[None]


class WeightRounds:
    """Rounds in which each replica trains alone, then all vectors are averaged as one."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._length = core.plan.round_steps
        self._sizes = core.layout.sizes()
        self._train_alone = opaque(self._train_steps)

    def replica_vector(self, now: Round, replica: tf.Tensor) -> tf.Tensor:
        state = self._join(now.vectors)
        return self._train_alone(state, now.first, now.last, now.table, now.signals, replica)

    def finish(
        self, vectors: Vectors, mean: tf.Tensor, table: tf.Tensor
    ) -> tuple[Vectors, tf.Tensor]:
        *pieces, tails = tf.split(mean, [*self._sizes.values(), self._length * len(Tail)])
        new = dict(zip(self._sizes, pieces, strict=True))
        for name in STATISTICS:
            if name in new:
                new[name] = self._core.template.keep_fixed(vectors[name], new[name])
        scale = tail_scale(self._core.experiment.replicas)
        return new, tf.reshape(tails, [self._length, len(Tail)]) * scale

    def _join(self, vectors: Vectors) -> tf.Tensor:
        return tf.concat([vectors[name] for name in self._sizes], 0)

    def _train_steps(
        self,
        state: tf.Tensor,
        first: tf.Tensor,
        last: tf.Tensor,
        table: tf.Tensor,
        signals: tf.Tensor,
        replica: tf.Tensor,
    ) -> tf.Tensor:
        """Return [state after the steps | tail of each step]."""

        def body(step: tf.Tensor, vector: tf.Tensor, tails: tf.TensorArray) -> tuple[Any, ...]:
            pieces = tf.split(vector, list(self._sizes.values()))
            vectors = dict(zip(self._sizes, pieces, strict=True))
            own = self._core.replica_vector(
                vectors["params"], vectors["stats"], Step(step, replica, signals)
            )
            new = self._core.apply(vectors, own, Rates.of_row(table[step - first]))
            tails = tails.write(tf.cast(step - first, tf.int32), own[-len(Tail) :])
            return step + 1, self._join(new), tails

        empty = tf.TensorArray(tf.float32, self._length, element_shape=[len(Tail)])
        _, joined, tails = tf.while_loop(
            lambda step, *_: step < last, body, [first, state, empty], parallel_iterations=2
        )
        return tf.concat([joined, tf.reshape(tails.stack(), [-1])], 0)
