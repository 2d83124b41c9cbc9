"""The loss of training, and what evaluation measures of a batch."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from paceline.data.batches import Batch
from paceline.experiment.data import Views
from paceline.experiment.experiment import Experiment
from paceline.kernels.arithmetic import cross_entropy as fixed_cross_entropy
from paceline.kernels.arithmetic import exponential, logarithm, mean, number, plain, total
from paceline.maths.template import Template


class Examined(NamedTuple):
    """What an evaluation batch gives; examples include padding."""

    row: tf.Tensor
    """As `maths.metrics` describes it."""
    outputs: tf.Tensor
    labels: tf.Tensor


def build_targets(experiment: Experiment, num_classes: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the function labels -> training targets: one-hot rows, smoothed."""
    smoothing = experiment.loss.label_smoothing
    share = smoothing / num_classes
    return lambda labels: plain(number(tf.one_hot(labels, num_classes)) * (1 - smoothing) + share)


def training_loss(experiment: Experiment, outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return the mean over a replica's examples, each with the weight of its class."""
    losses = cross_entropy(experiment, outputs, targets)
    if experiment.loss.class_weights:
        from paceline.data.statistics import example_weights

        losses = plain(number(losses) * example_weights(experiment, targets))
    return mean(losses)


def cross_entropy(experiment: Experiment, outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return the loss of each example."""
    if experiment.model.outputs == "logits":
        return fixed_cross_entropy(outputs, targets)
    logarithms = number(logarithm(tf.clip_by_value(outputs, 1e-7, 1.0)))
    return total(plain(logarithms * (0 - number(targets))), -1)


def correct(outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return 1 for each example whose highest output is that of its label, otherwise 0."""
    return tf.cast(tf.argmax(outputs, axis=-1, output_type=tf.int32) == labels, tf.float32)


def build_examine(
    experiment: Experiment, template: Template, batch_of: Callable[[tf.Tensor], Batch], views: Views
) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Examined]:
    """Return the function (params, stats, batch number) -> what the model does on the batch."""

    def examine(params: tf.Tensor, stats: tf.Tensor, index: tf.Tensor) -> Examined:
        batch = batch_of(index)

        def call(images: tf.Tensor) -> tf.Tensor:
            return template.call(params, stats, images, training=False)[0]

        if views == "none":
            outputs = call(batch.images)
        else:
            from paceline.maths.view_average import mean_over_views

            outputs = mean_over_views(call, batch.images, views)
        loss = cross_entropy(experiment, outputs, batch.targets)
        among_five = tf.math.in_top_k(batch.labels, outputs, min(5, outputs.shape[-1]))
        columns = (loss, correct(outputs, batch.labels), among_five, tf.ones_like(loss))
        sums = [total(plain(number(tf.cast(each, tf.float32)) * batch.weights)) for each in columns]
        highest = tf.reduce_max(outputs, -1)
        if experiment.model.outputs == "logits":
            others = exponential(plain(number(outputs) - highest[:, None]))
            highest = plain(1.0 / number(total(others, -1)))
        single = [tf.cast(values, tf.float32) for values in (batch.labels, tf.argmax(outputs, -1))]
        return Examined(tf.concat([tf.stack(sums), *single, highest], 0), outputs, batch.labels)

    return examine
