"""Numbers of an experiment that are computed from its training data: the weights of classes
(`balanced`) and the means and deviations of channels (`auto`).

All sums are of whole numbers, so that every worker gets the same bits.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import tensorflow as tf

from paceline.data.batches import evaluation_images
from paceline.data.source import Split
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment, Scaling
from paceline.experiment.fields import Json
from paceline.kernels.arithmetic import number, plain, total

CHUNK = 250
"""Examples that are read at a time."""
MOST_FILES = 5_000
"""Encoded images of which the means are taken; images of one size all count."""
Three = tuple[float, float, float]


def with_numbers(
    experiment: Experiment, train: Split, num_classes: int, stored: Json
) -> Experiment:
    """Return the experiment with numbers in place of `balanced` and `auto`. `stored` are the facts
    of a run's data, which have the numbers if they were computed before."""
    loss, scaling = experiment.loss, experiment.scaling
    if loss.class_weights == "balanced":
        known = stored.get("class_weights") or balanced_weights(train, num_classes)
        loss = replace(loss, class_weights=tuple(known))
    given = len(loss.class_weights)
    if given not in (0, num_classes):
        raise UserError(
            f"loss.class-weights has {given} numbers, but there are {num_classes} classes; give "
            "one for each class, in their order, or balanced"
        )
    if scaling.mean == "auto":
        mean, std = channel_statistics(experiment, train)
        scaling = replace(scaling, mean=mean, std=std)
    return replace(experiment, loss=loss, scaling=scaling)


def with_stored_means(scaling: Scaling, stored: Json) -> Scaling:
    """Return the scaling that a run has stored, if the data or the model decided it."""
    if "mean" not in stored or (scaling.mean != "auto" and scaling.method != "application"):
        return scaling
    method = stored.get("scaling", scaling.method)
    return Scaling(method, tuple(stored["mean"]), tuple(stored["std"]))


def computed_facts(asked: Experiment, used: Experiment) -> Json:
    """Return the numbers that were computed, to be compared between workers and stored."""
    facts: Json = {}
    if asked.loss.class_weights == "balanced":
        facts["class_weights"] = [float(each) for each in used.loss.class_weights]
    if asked.scaling.method == "application":
        facts["scaling"] = used.scaling.method
    if asked.scaling.mean == "auto" or asked.scaling.method == "application":
        facts |= {"mean": list(map(float, used.scaling.mean)), "std": list(used.scaling.std)}
    return facts


def balanced_weights(train: Split, num_classes: int) -> list[float]:
    """Return examples / (classes that have some x examples of the class), for each class.

    So every class has the same sum of weights, and the mean weight of an example is 1. A class
    without examples has the weight 0.
    """
    counts = np.zeros(num_classes, np.int64)
    for indices in _chunks(np.arange(train.size)):
        labels = train.labels(indices) if train.labels else train.read(indices)[1]
        counts += np.bincount(labels.numpy(), minlength=num_classes)
    share = train.size / np.count_nonzero(counts)
    return [share / count if count else 0.0 for count in counts.tolist()]


def example_weights(experiment: Experiment, targets: tf.Tensor) -> tf.Tensor:
    """Return the weight of each example: the mean over the classes that are mixed in it. Label
    smoothing is not a mixture, so its part of the targets is taken out."""
    weights, smoothing = experiment.loss.class_weights, experiment.loss.label_smoothing
    assert isinstance(weights, tuple), "`with_numbers` puts numbers in place of a word"
    by_target = number(total(plain(number(targets) * tf.constant(weights, tf.float32)), -1))
    usual = smoothing * (sum(weights) / len(weights))
    return plain((by_target - usual) / (1 - smoothing))


def channel_statistics(experiment: Experiment, train: Split) -> tuple[Three, Three]:
    """Return means and standard deviations of the channels, of images as evaluation sees them.
    Values are rounded to whole numbers first. Of one channel, all three numbers are the same."""
    count, totals = 0, np.zeros([2, 1], np.int64)
    encoded = train.read(tf.constant([0], tf.int64))[0].dtype == tf.string
    most = min(train.size, MOST_FILES) if encoded else train.size
    for indices in _chunks(np.arange(most) * train.size // most):
        images = evaluation_images(experiment, train.read(indices)[0])
        pixels = np.rint(images.numpy()).astype(np.int64).reshape(-1, images.shape[-1])
        totals = totals + np.stack([pixels.sum(0), (pixels * pixels).sum(0)])
        count += len(pixels)
    red, green, blue = (totals.T if totals.shape[1] == 3 else totals.T[:1].repeat(3, 0)).tolist()

    def deviation(total: int, square: int) -> float:
        return math.sqrt(count * square - total * total) / count or 1.0

    mean = (red[0] / count, green[0] / count, blue[0] / count)
    return mean, (deviation(*red), deviation(*green), deviation(*blue))


def _chunks(indices: np.ndarray) -> Iterator[tf.Tensor]:
    for start in range(0, len(indices), CHUNK):
        yield tf.constant(indices[start : start + CHUNK], tf.int64)
