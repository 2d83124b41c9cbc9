"""A round as every engine computes it: the vectors of some replicas, and the state after the mean.

A round is what replicas compute between two exchanges. How they exchange vectors is the engine's
business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from paceline.experiment.schedule import Rates
from paceline.maths import loss_scale
from paceline.maths.metrics import Tail, tail_scale
from paceline.maths.replica import Core
from paceline.maths.state import STATISTICS
from paceline.maths.tree import opaque
from paceline.maths.update import Vectors


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
        scale = vectors[loss_scale.VECTOR][0] if core.is_scaled else None

        def compute(replica: tf.Tensor) -> tf.Tensor:
            params, stats = vectors["params"], vectors["stats"]
            return core.replica_vector(params, stats, step, replica, signals, scale)

        return compute

    def finish(vectors: Vectors, mean: tf.Tensor, table: tf.Tensor) -> tuple[Vectors, tf.Tensor]:
        return core.apply(vectors, mean, Rates.of_row(table[0])), core.tail(mean)[None] * scale

    return one_replica, finish


def _build_weights(core: Core) -> tuple[Any, Any]:
    """Each replica trains alone, then all vectors are averaged as one."""
    length, scale = core.plan.round_steps, tail_scale(core.experiment.replicas)
    names, sizes = list(core.layout.parts), list(core.layout.sizes().values())
    template = core.template

    def join(vectors: Vectors) -> tf.Tensor:
        return tf.concat([vectors[name] for name in names], 0)

    @opaque
    def train_alone(
        state: tf.Tensor,
        first: tf.Tensor,
        last: tf.Tensor,
        table: tf.Tensor,
        signals: tf.Tensor,
        replica: tf.Tensor,
    ) -> tf.Tensor:
        def body(step: tf.Tensor, vector: tf.Tensor, tails: tf.TensorArray) -> tuple[Any, ...]:
            vectors = dict(zip(names, tf.split(vector, sizes), strict=True))
            own = core.replica_vector(vectors["params"], vectors["stats"], step, replica, signals)
            new = core.apply(vectors, own, Rates.of_row(table[step - first]))
            tails = tails.write(tf.cast(step - first, tf.int32), core.tail(own))
            return step + 1, join(new), tails

        empty = tf.TensorArray(tf.float32, length, element_shape=[len(Tail)])
        _, joined, tails = tf.while_loop(
            lambda step, *_: step < last, body, [first, state, empty], parallel_iterations=2
        )
        return tf.concat([joined, tf.reshape(tails.stack(), [-1])], 0)

    def one_replica(vectors: Vectors, *arguments: tf.Tensor) -> Any:
        return partial(train_alone, join(vectors), *arguments)

    def finish(vectors: Vectors, mean: tf.Tensor, table: tf.Tensor) -> tuple[Vectors, tf.Tensor]:
        *pieces, tails = tf.split(mean, [*sizes, length * len(Tail)])
        tails = tf.reshape(tails, [length, len(Tail)]) * scale
        new = dict(zip(names, pieces, strict=True))
        for name in STATISTICS:
            if name in new:
                new[name] = template.keep_fixed(vectors[name], new[name])
        return new, tails

    return one_replica, finish
