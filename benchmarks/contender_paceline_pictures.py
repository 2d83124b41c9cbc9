"""The input pipeline of Paceline on TFRecords of JPEGs, as in the recipes for ImageNet.

    python -m benchmarks.contender_paceline_pictures batches SHARD_FOLDER
    python -m benchmarks.contender_paceline_pictures start|again first|last SHARD_FOLDER

It makes random area crops of 224 pixels, flipped and scaled. `batches` prepares step after step.
`start` builds the pipeline again for each of its steps: it measures the time from a built core to
the batch of the first or the last step of an epoch, most of which TensorFlow takes to build a
graph. `again` builds the graph once, so that only the batch counts. Each batch is of another epoch,
because images differ in size.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from benchmarks.contender_paceline_input import serve_input
from benchmarks.pictures import BATCH_SIZE, MEAN, STD
from benchmarks.protocol import Channel, Clock
from paceline.build import build_core
from paceline.engines.devices import build_strategy
from paceline.experiment.experiment import Augmentation, Data, Experiment, Model, Scaling, Schedule
from paceline.job import Job

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.data.batches import Batch


def build_experiment(folder: str) -> Experiment:
    """Return the experiment, with a small model, because the model is never run."""
    return Experiment(
        data=Data(source="tfrecord", dir=folder, image_size=224),
        augment=Augmentation(flip=True),
        scaling=Scaling(mean=MEAN, std=STD),
        model=Model(depth=8),
        schedule=Schedule(name="constant"),
        epochs=10_000,
        global_batch_size=BATCH_SIZE,
        replicas=2,
    )


def corners(batch: Batch) -> tf.Tensor:
    """Return a number that needs the batch.

    One pixel is enough: the function that makes a batch is never inlined, so it makes all of it. To
    add up all pixels would cost time that the other pipeline does not spend.
    """
    import tensorflow as tf

    return tf.reduce_sum(batch.images[:, 0, 0, 0]) + tf.reduce_sum(batch.targets)


def serve_starts(experiment: Experiment, anew: bool, last: bool) -> None:
    job, channel, epoch = Job(experiment), Channel(), 0
    build_strategy(job)
    import tensorflow as tf

    core = build_core(job)
    while (starts := channel.next_turn()) is not None:
        wall_s = cpu_s = 0.0
        for _ in range(starts):
            core = build_core(job) if anew else core
            step = epoch * core.plan.steps_per_epoch + (
                core.plan.steps_per_epoch - 1 if last else 0
            )
            gc.collect()
            clock = Clock.start()
            for replica in range(experiment.replicas):
                corners(
                    core.batch(tf.constant(step, tf.int64), tf.constant(replica, tf.int64))
                ).numpy()
            wall, cpu = clock.read()
            wall_s, cpu_s, epoch = wall_s + wall, cpu_s + cpu, epoch + 1
        channel.report(starts * experiment.global_batch_size, wall_s, cpu_s)


def main() -> None:
    kind, experiment = sys.argv[1], build_experiment(sys.argv[-1])
    if kind == "batches":
        serve_input(experiment, corners)
    else:
        serve_starts(experiment, anew=kind == "start", last=sys.argv[2] == "last")


if __name__ == "__main__":
    main()
