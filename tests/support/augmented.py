"""Batches of training images, and the random numbers behind them once more in NumPy."""

import hashlib
from dataclasses import replace

import numpy as np
import tensorflow as tf

from paceline.data.batches import build_train_batches
from paceline.data.order import slice_indices
from paceline.data.source import in_memory
from paceline.experiment.experiment import Augmentation, Experiment, Scaling
from paceline.maths.losses import build_targets
from tiny import number

PLAIN = Augmentation()

UNIT = Scaling("unit")


def indices(step, replica, size, replicas, replica_batch_size, seed=0):
    experiment = Experiment(
        global_batch_size=replicas * replica_batch_size, replicas=replicas, seed=seed
    )
    return slice_indices(experiment, size, number(step), number(replica))[1].numpy()


def global_batches(steps, size, replicas, batch_size, seed=0):
    """The slices of all replicas side by side, a row for each step."""
    pairs = tf.constant(
        [(step, replica) for step in steps for replica in range(replicas)], tf.int64
    )

    experiment = Experiment(global_batch_size=batch_size, replicas=replicas, seed=seed)

    @tf.function(autograph=False)
    def every_slice():
        return tf.map_fn(lambda pair: slice_indices(experiment, size, *tf.unstack(pair))[1], pairs)

    return every_slice().numpy().reshape(len(steps), batch_size)


def global_batch(step, size, replicas, batch_size, seed=0):
    return global_batches([step], size, replicas, batch_size, seed)[0]


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def mix(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def drawn_by_numpy(name, seed, epoch, examples):
    with np.errstate(over="ignore"):
        start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") ^ seed
        key = mix(np.uint64(epoch) + mix(np.uint64(start)))
        return (mix(examples.astype(np.uint64) + key) >> np.uint64(33)).astype(np.int64)


def train_batch(settings, step=0, replica=0, shape=(8, 6, 3), size=40, seed=5, **changes):
    """A prepared batch of eight with its raw pictures and their indices, of an experiment with two
    replicas."""
    images = np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)
    labels = np.arange(size) % 10
    experiment = Experiment(augment=settings, scaling=UNIT, global_batch_size=16, seed=seed)
    experiment = replace(experiment, **changes)
    batch_of = build_train_batches(
        experiment, in_memory(images, labels), build_targets(experiment, 10)
    )
    batch = batch_of(number(step), number(replica))
    chosen = indices(step, replica, size, 2, 8, seed)
    np.testing.assert_array_equal(batch.labels.numpy(), labels[chosen])
    return batch, images[chosen], chosen


def to_pixels(x):
    """Undoes `unit`."""
    pixels = (x.numpy() + 1) * 128
    np.testing.assert_array_equal(pixels, np.round(pixels))
    return pixels.astype(np.uint8)
