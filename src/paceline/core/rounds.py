"""A round as every engine computes it: the vectors of some replicas, the state after the mean of all, and the metrics of a block.

How the vectors of all replicas meet in between is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.config.schedule import rates
from paceline.core.replica import TAIL, Core
from paceline.core.tree import opaque
from paceline.core.update import Vectors
from paceline.worker import loop
from paceline.worker.loop import Metrics


@dataclass(frozen=True)
class Rounds:
    """The two halves of a round of steps [first, last); `table` has the rates of its steps."""

    compute: Callable[..., list[tf.Tensor]]
    """(vectors, first, last, table, signals, first_replica, count) -> the vectors of `count` replicas"""
    finish: Callable[[Vectors, tf.Tensor, tf.Tensor], tuple[Vectors, tf.Tensor]]
    """(vectors, mean over all replicas, table) -> the vectors after the round, and a tail per step"""


def build_rounds(core: Core, side_by_side: int) -> Rounds:
    """The rounds of the experiment's method of sync, `side_by_side` replicas of a device at a time."""
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
        start, results = one_replica(vectors, first, last, table, signals), list[tf.Tensor]()
        for k in range(count):
            before = results[k - side_by_side : k - side_by_side + 1] if k >= side_by_side else []
            with tf.control_dependencies(before):
                results.append(start(tf.cast(first_replica + k, tf.int64)))
        return results

    return Rounds(compute, finish)


def _build_gradients(core: Core) -> tuple[Any, Any]:
    """One step: the gradients of each replica, then the update by their mean."""

    def one_replica(
        vectors: Vectors, step: tf.Tensor, last: tf.Tensor, table: tf.Tensor, signals: tf.Tensor
    ) -> Any:
        def compute(replica: tf.Tensor) -> tf.Tensor:
            batch = core.batch(step, replica)
            return core.replica_step(
                vectors["params"],
                vectors["stats"],
                batch.images,
                batch.targets,
                batch.labels,
                step,
                replica,
                signals,
            )

        return compute

    def finish(vectors: Vectors, mean: tf.Tensor, table: tf.Tensor) -> tuple[Vectors, tf.Tensor]:
        return core.apply(vectors, mean, table[0]), core.tail(mean)[None] * tail_scale(core)

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
            batch = core.batch(step, replica)
            own = core.replica_step(
                vectors["params"],
                vectors["stats"],
                batch.images,
                batch.targets,
                batch.labels,
                step,
                replica,
                signals,
            )
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
        ) * tail_scale(core)

    return one_replica, finish


def tail_scale(core: Core) -> np.ndarray:
    """Loss and seconds are means over replicas; correct, count and stop are sums."""
    replicas = float(core.experiment.replicas)
    return np.array([1.0, replicas, replicas, replicas, 1.0], np.float32)


def rates_of(core: Core, first: int, last: int) -> np.ndarray:
    """The rates of steps [first, last), a row each."""
    return np.array(
        rates(core.experiment, first, last, core.plan.steps_per_epoch, core.plan.total_steps),
        np.float32,
    )


def block_metrics(
    core: Core, step: int, tails: np.ndarray, table: np.ndarray, seconds: float
) -> Metrics:
    """The metrics of a block that ended at `step` after `seconds` for each of its steps."""
    return loop.block_metrics(core.plan, step - len(tails), tails, table) | {
        "stop_requested": bool(tails[-1, TAIL.index("stop")]),
        "images_per_second": core.experiment.global_batch_size / seconds,
        "seconds_per_step": seconds,
    }
