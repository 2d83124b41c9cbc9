"""What training minimises: targets, cross-entropy, and the weights of classes; and what counts as
correct."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from paceline.experiment.experiment import Experiment


def build_targets(experiment: Experiment, num_classes: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the function labels -> training targets: one-hot rows, smoothed."""
    smoothing = experiment.loss.label_smoothing

    def targets_of(labels: tf.Tensor) -> tf.Tensor:
        return tf.one_hot(labels, num_classes) * (1 - smoothing) + smoothing / num_classes

    return targets_of


def training_loss(experiment: Experiment, outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return the mean over a replica's examples, each with the weight of its class."""
    losses = cross_entropy(experiment, outputs, targets)
    if experiment.loss.class_weights:
        losses *= example_weights(experiment, targets)
    return tf.reduce_mean(losses)


def cross_entropy(experiment: Experiment, outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return the loss of each example."""
    if experiment.model.outputs == "logits":
        return tf.nn.softmax_cross_entropy_with_logits(targets, outputs)
    return -tf.reduce_sum(targets * tf.math.log(tf.clip_by_value(outputs, 1e-7, 1.0)), axis=-1)


def example_weights(experiment: Experiment, targets: tf.Tensor) -> tf.Tensor:
    """Return the weight of each example: that of its class, or of a mixed example the mean over its
    classes by their shares.

    Label smoothing does not count as a mixture, so its part of the targets is taken out.
    """
    weights, smoothing = experiment.loss.class_weights, experiment.loss.label_smoothing
    assert isinstance(weights, tuple), "`data.statistics` puts numbers in place of a word"
    by_target = tf.reduce_sum(targets * tf.constant(weights, tf.float32), axis=-1)
    return (by_target - smoothing * (sum(weights) / len(weights))) / (1 - smoothing)


def correct(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return 1 for each example whose highest output is that of its label, otherwise 0."""
    return tf.cast(tf.argmax(outputs, axis=-1, output_type=tf.int32) == labels, tf.float32)
