"""(step, replica) -> the prepared batch that a replica trains on, and batch number -> an evaluation batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from paceline.data import augment, order
from paceline.data.source import Split
from paceline.experiment import Experiment


class Batch(NamedTuple):
    """images float32 [n, h, w, c]; targets float32 [n, classes] sum to one; labels int32 [n]; weights float32 [n], 0 for padding."""

    images: tf.Tensor
    targets: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


def build_train_batches(experiment: Experiment, train: Split, num_classes: int) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
    """The function (step, replica) -> Batch; both are int64 scalars."""
    data, size, smoothing = experiment.data, experiment.replica_batch_size, experiment.optimizer.label_smoothing
    steps_per_epoch = train.size // experiment.global_batch_size

    def batch(step: tf.Tensor, replica: tf.Tensor) -> Batch:
        with tf.device("CPU:0"):
            indices = order.slice_indices(step, replica, train.size, experiment.replicas, size, experiment.seed)
            raw, labels = train.read(indices)
            bits = augment.random_bits(experiment.seed, step // steps_per_epoch, indices, 5)
            images = augment.scale(data, augment.augment(data, raw, bits))
            images = augment.cutout(data, images, bits)
            targets = tf.one_hot(labels, num_classes) * (1 - smoothing) + smoothing / num_classes
            key = tf.stack([step * experiment.replicas + replica, tf.constant(experiment.seed, tf.int64)])
            images, targets = augment.mixup(data, images, targets, key)
            return Batch(images, targets, labels, tf.ones([size]))

    return batch


def build_eval_batches(experiment: Experiment, split: Split, num_classes: int, batch_size: int) -> Callable[[tf.Tensor], Batch]:
    """The function batch number -> Batch of a fixed shape; padding beyond the last example has weight 0."""

    def batch(number: tf.Tensor) -> Batch:
        with tf.device("CPU:0"):
            positions = number * batch_size + tf.range(batch_size, dtype=tf.int64)
            raw, labels = split.read(tf.minimum(positions, split.size - 1))
            weights = tf.cast(positions < split.size, tf.float32)
            return Batch(augment.scale(experiment.data, raw), tf.one_hot(labels, num_classes), labels, weights)

    return batch
