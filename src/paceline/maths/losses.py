"""The training loss: targets, cross-entropy with class weights, and the loss scale of float16.

Gradients of float16 would be rounded to zero, so the loss is multiplied by a scale and the gradient
divided by it. A step whose mean gradient is not finite changes nothing but the scale, which is
halved; after `GROW_EVERY` finite steps in a row it is doubled. The scale is part of the state. All
workers decide by the same mean, so they decide alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from paceline.experiment.experiment import Experiment
from paceline.maths.state import Part
from paceline.maths.update import Vectors

LOSS_SCALE = "loss_scale"
"""Name of the vector in the state: the scale, and the finite steps since it changed."""
SCALE_PART: Part = (("scale", ()), ("finite_steps", ()))
INITIAL_SCALE = np.array([2.0**15, 0.0], np.float32)
GROW_EVERY = 2_000
SMALLEST, LARGEST = 1.0, 2.0**30


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
    """Return the weight of each example: the mean over the classes that are mixed in it.

    Label smoothing is not a mixture, so its part of the targets is taken out.
    """
    weights, smoothing = experiment.loss.class_weights, experiment.loss.label_smoothing
    assert isinstance(weights, tuple), "`data.statistics` puts numbers in place of a word"
    by_target = tf.reduce_sum(targets * tf.constant(weights, tf.float32), axis=-1)
    return (by_target - smoothing * (sum(weights) / len(weights))) / (1 - smoothing)


def correct(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return 1 for each example whose highest output is that of its label, otherwise 0."""
    return tf.cast(tf.argmax(outputs, axis=-1, output_type=tf.int32) == labels, tf.float32)


def has_loss_scale(experiment: Experiment) -> bool:
    """Return whether the state of an experiment has a loss scale."""
    return experiment.precision == "float16"


def keep_if_finite(old: Vectors, new: Vectors, gradient: tf.Tensor) -> Vectors:
    """Return `new` if the mean gradient is finite, otherwise `old`; and the next loss scale."""
    finite = tf.reduce_all(tf.math.is_finite(gradient))
    kept = {name: tf.where(finite, new[name], old[name]) for name in new}
    return {**kept, LOSS_SCALE: _next_scale(old[LOSS_SCALE], finite)}


def _next_scale(scale: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
    value, count = scale[0], scale[1] + 1
    grows = count >= GROW_EVERY
    if_finite = tf.stack(
        [
            tf.where(grows, tf.minimum(value * 2, LARGEST), value),
            tf.where(grows, tf.zeros_like(count), count),
        ]
    )
    halved = tf.stack([tf.maximum(value / 2, SMALLEST), tf.zeros_like(count)])
    return tf.where(finite, if_finite, halved)
