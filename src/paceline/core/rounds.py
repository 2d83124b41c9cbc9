"""A round as every engine computes it: the vectors of some replicas, the state after the mean of
all, and the metrics of a block.

How the vectors of all replicas meet in between is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.config.schedule import rates
from paceline.core.metrics import TAIL, tail_scale
from paceline.core.replica import Core
from paceline.core.tree import opaque
from paceline.core.update import Vectors


@dataclass(frozen=True)
class Rounds:
    """The two halves of a round of steps [first, last); `table` has the rates of its steps."""

    compute: Callable[..., list[tf.Tensor]]
    """(vectors, first, last, table, signals, first_replica, count) -> the vectors of `count`
    replicas"""
    finish: Callable[[Vectors, tf.Tensor, tf.Tensor], tuple[Vectors, tf.Tensor]]
    """(vectors, mean over all replicas, table) -> the vectors after the round, and a tail per
    step"""


def build_rounds(core: Core, side_by_side: int) -> Rounds:
    """The rounds of the experiment's method of sync, `side_by_side` replicas of a device at a
    time."""
    one_replica, finish = (
        _build_weights if core.experiment.sync.method == "weights" else _build_gradients
    )(core)

    def compute(
        vectors: Vectors,
        first: tf.Tensor,
        last: tf.Tensor,
        table: tf.Tensor,
        signals: tf.Tensor,
        first_replica: tf.Tensor,
        count: int,
    ) -> list[tf.Tensor]:
        start = one_replica(vectors, first, last, table, signals)
        replicas = [partial(start, tf.cast(first_replica + k, tf.int64)) for k in range(count)]
        return run_side_by_side(replicas, side_by_side)

    return Rounds(compute, finish)


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


def _build_gradients(core: Core) -> tuple[Any, Any]:
    """One step: the gradients of each replica, then the update by their mean."""
    scale = tail_scale(core.experiment.replicas)

    def one_replica(
        vectors: Vectors, step: tf.Tensor, last: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> Any:
        def compute(replica: tf.Tensor) -> tf.Tensor:
            return core.replica_vector(vectors["params"], vectors["stats"], step, replica, signals)

        return compute

    def finish(vectors: Vectors, mean: tf.Tensor, table: tf.Tensor) -> tuple[Vectors, tf.Tensor]:
        return core.apply(vectors, mean, table[0]), core.tail(mean)[None] * scale

    return one_replica, finish


def _build_weights(core: Core) -> tuple[Any, Any]:
    """Each replica trains alone, then all vectors are averaged as one."""
    length = core.plan.round_steps
    sizes = [core.layout.sizes()[name] for name in core.layout.parts]

    @opaque
    def train_alone(
        state: tf.Tensor,
        first: tf.Tensor,
        last: tf.Tensor,
        table: tf.Tensor,
        signals: tf.Tensor,
        replica: tf.Tensor,
    ) -> Any:
        def body(
            step: tf.Tensor, vector: tf.Tensor, tails: tf.TensorArray
        ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
            vectors = dict(zip(core.layout.parts, tf.split(vector, sizes), strict=True))
            own = core.replica_vector(vectors["params"], vectors["stats"], step, replica, signals)
            new = core.apply(vectors, own, table[step - first])
            joined = tf.concat([new[name] for name in core.layout.parts], 0)
            return step + 1, joined, tails.write(tf.cast(step - first, tf.int32), core.tail(own))

        empty = tf.TensorArray(tf.float32, length, element_shape=[len(TAIL)])
        _, joined, tails = tf.while_loop(
            lambda step, *_: step < last, body, [first, state, empty], parallel_iterations=2
        )
        return tf.concat([joined, tf.reshape(tails.stack(), [-1])], 0)

    def one_replica(
        vectors: Vectors, first: tf.Tensor, last: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> Any:
        state = tf.concat([vectors[name] for name in core.layout.parts], 0)
        return lambda replica: train_alone(state, first, last, table, signals, replica)

    def finish(vectors: Vectors, mean: tf.Tensor, table: tf.Tensor) -> tuple[Vectors, tf.Tensor]:
        *pieces, tails = tf.split(mean, [*sizes, length * len(TAIL)])
        return dict(zip(core.layout.parts, pieces, strict=True)), tf.reshape(
            tails, [length, len(TAIL)]
        ) * tail_scale(core.experiment.replicas)

    return one_replica, finish


def rates_of(core: Core, first: int, last: int) -> np.ndarray:
    """The rates of steps [first, last), a row each."""
    return np.array(
        rates(core.experiment, first, last, core.plan.steps_per_epoch, core.plan.total_steps),
        np.float32,
    )
