"""(step, replica) -> the batch that a replica trains on; batch number -> an evaluation batch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from paceline.data import order
from paceline.data.augment.scale import scale
from paceline.data.draws import Draws
from paceline.data.source import Split
from paceline.experiment.experiment import Augmentation, Experiment

PREPARATIONS = {"uint8": "paceline.data.images", "string": "paceline.formats.encoded.prepare"}
"""The module that makes images of raw examples, by their type."""

Changes = tuple[tuple[tuple[str, ...], str], ...]
"""Settings of `Augmentation`, and the function that uses them. It is imported if one is set."""
BEFORE_SCALING: Changes = (
    (("rand_augment",), "rand_augment:rand_augment"),
    (("saturation", "hue"), "color:change_colors"),
)
AFTER_SCALING: Changes = (
    (("contrast", "brightness"), "color:jitter"),
    (("cutout",), "erase:cutout"),
    (("random_erasing",), "erase:erase"),
)
MIXING: Changes = ((("mixup", "cutmix"), "mix:mix"),)


class Preparation(Protocol):
    """Makes images with values of 0 to 255 of raw examples."""

    def train_images(
        self, experiment: Experiment, raw: tf.Tensor, draws: Draws, image_size: int
    ) -> tf.Tensor:
        """Return random crops. `image_size` is a side other than the usual one, or 0."""

    def evaluation_images(
        self, experiment: Experiment, raw: tf.Tensor, indices: tf.Tensor
    ) -> tf.Tensor:
        """Return central crops of the examples `indices`."""


class Batch(NamedTuple):
    """images float32 [n, h, w, c]; targets float32 [n, classes] sum to one; labels int32 [n];
    weights float32 [n], 0 for padding."""

    images: tf.Tensor
    targets: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


def build_train_batches(
    experiment: Experiment,
    train: Split,
    targets_of: Callable[[tf.Tensor], tf.Tensor],
    image_size: int = 0,
) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
    """Return the function (step, replica) -> Batch; both are int64 scalars.

    `targets_of` turns labels into what the loss compares the outputs with. `image_size` is a side
    other than the usual one, or 0.
    """
    settings, size = experiment.augment, experiment.replica_batch_size
    before, after, mixing = (
        _chosen(settings, changes) for changes in (BEFORE_SCALING, AFTER_SCALING, MIXING)
    )

    def batch(step: tf.Tensor, replica: tf.Tensor) -> Batch:
        with tf.device("CPU:0"):
            epoch, indices = order.slice_indices(experiment, train.size, step, replica)
            raw, labels = train.read(indices)
            draws = Draws(experiment.seed, epoch, indices)
            images = preparation_of(raw).train_images(experiment, raw, draws, image_size)
            for change in before:
                images = change(settings, images, draws)
            images, targets = scale(experiment.scaling, images), targets_of(labels)
            for change in after:
                images = change(settings, images, draws)
            for mix in mixing:
                images, targets = mix(experiment, images, targets, draws, step, replica)
            return Batch(images, targets, labels, tf.ones([size]))

    return batch


def _chosen(settings: Augmentation, changes: Changes) -> list[Callable[..., Any]]:
    """Return the functions of the changes that the settings ask for."""
    names = [name for fields, name in changes if any(getattr(settings, each) for each in fields)]
    pairs = [name.split(":") for name in names]
    return [
        getattr(importlib.import_module(f"paceline.data.augment.{module}"), function)
        for module, function in pairs
    ]


def build_eval_batches(
    experiment: Experiment, split: Split, num_classes: int, batch_size: int
) -> Callable[[tf.Tensor], Batch]:
    """Return the function batch number -> Batch of a fixed shape.

    Padding beyond the last example has weight 0.
    """

    def batch(number: tf.Tensor) -> Batch:
        with tf.device("CPU:0"):
            positions = number * batch_size + tf.range(batch_size, dtype=tf.int64)
            indices = tf.minimum(positions, split.size - 1)
            raw, labels = split.read(indices)
            images = evaluation_images(experiment, raw, indices)
            weights = tf.cast(positions < split.size, tf.float32)
            images = scale(experiment.scaling, images)
            return Batch(images, tf.one_hot(labels, num_classes), labels, weights)

    return batch


def evaluation_images(experiment: Experiment, raw: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Return raw examples as evaluation and prediction take them, before scaling."""
    return preparation_of(raw).evaluation_images(experiment, raw, indices)


def preparation_of(raw: tf.Tensor) -> Preparation:
    """Return what makes images of raw examples of this type."""
    found: Preparation = importlib.import_module(PREPARATIONS[raw.dtype.name])
    return found
