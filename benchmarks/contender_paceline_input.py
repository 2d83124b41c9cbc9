"""The input pipeline of Paceline alone: prepares the batches of a training and discards them.

python -m benchmarks.contender_paceline_input DEPTH DATA_FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.contender_paceline import build_experiment
from benchmarks.protocol import serve
from paceline.build import build_core
from paceline.engines.devices import build_strategy
from paceline.experiment.experiment import Experiment
from paceline.job import Job

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.data.batches import Batch
    from paceline.maths.replica import Core

Touch = Callable[["Batch"], "tf.Tensor"]
"""A number that needs the batch, so that preparing it is not optimised away."""


def every_pixel(batch: Batch) -> tf.Tensor:
    import tensorflow as tf

    return tf.reduce_sum(batch.images) + tf.reduce_sum(batch.targets)


def build_reading(
    core: Core, touch: Touch = every_pixel
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a function of (start, stop) whose result needs every batch of these steps."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def read(start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            batches = [
                core.batch(step, tf.constant(replica, tf.int64))
                for replica in range(core.experiment.replicas)
            ]
            return step + 1, total + tf.add_n([touch(batch) for batch in batches])

        return tf.while_loop(
            lambda step, _: step < stop, body, [start, tf.constant(0.0)], parallel_iterations=2
        )[1]

    return read


def serve_input(experiment: Experiment, touch: Touch = every_pixel) -> None:
    job = Job(experiment)
    build_strategy(job)
    core = build_core(job)
    # `build_strategy` makes TensorFlow's settings, so the import comes after it.
    import tensorflow as tf

    read, step = build_reading(core, touch), 0

    def prepare(steps: int) -> float:
        nonlocal step
        read(tf.constant(step, tf.int64), tf.constant(step + steps, tf.int64)).numpy()
        step += steps
        return steps * experiment.global_batch_size

    serve(prepare)


if __name__ == "__main__":
    serve_input(build_experiment(int(sys.argv[1]), sys.argv[2]))
