"""Numbers of an experiment that are computed from its training data: the weights of classes
(`balanced`) and the means and deviations of channels (`auto`).

All sums are of whole numbers, so that every worker gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.data.batches import evaluation_images
from paceline.data.source import Split
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment, Loss, Scaling

CHUNK = 250
"""Examples that are read at a time."""
MOST_FILES = 5_000
"""Encoded images of which the means are taken; images of one size all count."""


def with_numbers(
    experiment: Experiment, train: Split, num_classes: int, stored: dict[str, Any]
) -> Experiment:
    """Return the experiment with numbers in place of `balanced` and `auto`.

    `stored` are the facts of a run's data, which have the numbers if they were computed before.
    """
    loss, scaling = experiment.loss, experiment.scaling
    if loss.class_weights == "balanced":
        known = stored.get("class_weights") or balanced_weights(train, num_classes)
        loss = replace(loss, class_weights=tuple(known))
    _check_weights(loss, num_classes)
    if scaling.mean == "auto":
        mean, std = channel_statistics(experiment, train)
        scaling = replace(scaling, mean=mean, std=std)
    return replace(experiment, loss=loss, scaling=scaling)


def with_stored_means(scaling: Scaling, stored: dict[str, Any]) -> Scaling:
    """Return the scaling that a run has stored, if the data or the model decided it."""
    if "mean" not in stored or (scaling.mean != "auto" and scaling.method != "application"):
        return scaling
    method = stored.get("scaling", scaling.method)
    return Scaling(method, tuple(stored["mean"]), tuple(stored["std"]))


def computed_facts(asked: Experiment, used: Experiment) -> dict[str, Any]:
    """Return the numbers that were computed, to be compared between workers and stored."""
    facts: dict[str, Any] = {}
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


def channel_statistics(
    experiment: Experiment, train: Split
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return means and standard deviations of the channels, of images as evaluation sees them.

    Values are rounded to whole numbers first. Of one channel, all three numbers are the same.
    """
    totals: list[np.ndarray] = []
    count = 0
    encoded = train.read(tf.constant([0], tf.int64))[0].dtype == tf.string
    most = min(train.size, MOST_FILES) if encoded else train.size
    for indices in _chunks(np.arange(most) * train.size // most):
        images = evaluation_images(experiment, train.read(indices)[0], indices)
        pixels = np.rint(images.numpy()).astype(np.int64).reshape(-1, images.shape[-1])
        totals.append(np.stack([pixels.sum(0), (pixels * pixels).sum(0)]))
        count += len(pixels)
    sums, squares = (row.tolist() for row in np.sum(totals, axis=0))
    mean = [total / count for total in sums]
    std = [
        math.sqrt(count * square - total * total) / count or 1.0
        for total, square in zip(sums, squares, strict=True)
    ]
    return _three(mean), _three(std)


def _three(values: list[float]) -> tuple[float, float, float]:
    first, second, third = values if len(values) == 3 else values[:1] * 3
    return first, second, third


def _chunks(indices: np.ndarray) -> Iterator[tf.Tensor]:
    for start in range(0, len(indices), CHUNK):
        yield tf.constant(indices[start : start + CHUNK], tf.int64)


def _check_weights(loss: Loss, num_classes: int) -> None:
    weights = loss.class_weights
    if weights and len(weights) != num_classes:
        raise UserError(
            f"loss.class-weights has {len(weights)} numbers, but there are {num_classes} "
            "classes; give one for each class, in their order, or balanced"
        )
