"""Compares BatchNorm statistics for the average of weights (`average.decay`) on held-out images.

    python -m benchmarks.averages RUN

RUN was trained with --average.decay and --data.validation. The first line is of the last weights,
the others are of the average: with the statistics of the last weights, with the average of the
statistics, which is what Paceline evaluates, and with statistics measured anew on training images.
"""

import argparse

import numpy as np
import tensorflow as tf

from paceline.build import build_core
from paceline.job import Job
from paceline.maths.metrics import SIGNALS, num_batches, summarize
from paceline.maths.replica import Core, Step
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.folder import RunFolder

STEPS = 100
"""Of measuring statistics anew; a moving statistic has then forgotten where it began."""


def measured_anew(core: Core, params: tf.Tensor, stats: tf.Tensor, step: int) -> tf.Tensor:
    """Return the statistics of constant weights after the training images of `STEPS` steps."""
    size = core.layout.sizes()["params"]
    replicas = range(core.experiment.replicas)

    @tf.function
    def advance(stats: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        signals = tf.zeros([len(SIGNALS)])
        vectors = [
            core.replica_vector(params, stats, Step(step, tf.constant(k, tf.int64), signals))
            for k in replicas
        ]
        moving = tf.reduce_mean(tf.stack(vectors), 0)[size : size + core.template.moving_size()]
        return core.template.merge(stats, moving)

    for number in range(step - STEPS, step):
        stats = advance(stats, tf.constant(number, tf.int64))
    return stats


def accuracy(core: Core, params: tf.Tensor, stats: tf.Tensor) -> float:
    """Return the accuracy on the validation split."""
    numbers = range(num_batches(core.splits["validation"].size, core.eval_batch_size))
    evaluate = core.examine["validation"]
    rows = [evaluate(params, stats, tf.constant(number, tf.int64)).row for number in numbers]
    return summarize(np.stack(rows)).accuracy


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.averages")
    parser.add_argument("run")
    run = RunFolder(parser.parse_args().run)
    core = build_core(Job(run.experiment()))
    state = Checkpoints(run.checkpoints, core.layout).choose("last")
    last, average, stats, averaged_stats = (
        tf.constant(state.vectors[name]) for name in ("params", "ema", "stats", "ema_stats")
    )
    anew = measured_anew(core, average, averaged_stats, state.step)
    for name, params, own in (
        ("last weights", last, stats),
        ("average, statistics of the last weights", average, stats),
        ("average, averaged statistics", average, averaged_stats),
        ("average, statistics measured anew", average, anew),
    ):
        print(f"{accuracy(core, params, own):.4f}  {name}", flush=True)


if __name__ == "__main__":
    main()
