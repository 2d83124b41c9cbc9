"""(step, replica) -> the batch that a replica trains on; batch number -> an evaluation batch."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import tensorflow as tf

from paceline.data import images as fixed_size
from paceline.data import order
from paceline.data.draws import Draws
from paceline.data.source import Split
from paceline.experiment.experiment import Experiment

ENCODED = "paceline.formats.encoded.prepare"
"""Makes images of encoded examples."""
CHANGES = "paceline.data.augment.changes"
"""Changes images at random, if one of these fields of `Augmentation` is set."""
CHANGED_BY = (
    *("rand_augment", "saturation", "hue", "contrast", "brightness", "cutout"),
    *("random_erasing", "mixup", "cutmix"),
)


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
    asked = any(getattr(settings, name) for name in CHANGED_BY)
    changes = import_module(CHANGES) if asked else None

    def batch(step: tf.Tensor, replica: tf.Tensor) -> Batch:
        with tf.device("CPU:0"):
            epoch, indices = order.slice_indices(experiment, train.size, step, replica)
            raw, labels = train.read(indices)
            draws = Draws(experiment.seed, epoch, indices)
            images = preparation_of(raw).train_images(experiment, raw, draws, image_size)
            if changes:
                images = changes.before_scaling(settings, images, draws)
            images, targets = fixed_size.scale(experiment.scaling, images), targets_of(labels)
            if changes:
                images = changes.after_scaling(settings, images, draws)
                images, targets = changes.mix(experiment, images, targets, draws)
            return Batch(images, targets, labels, tf.ones([size]))

    return batch


def build_eval_batches(
    experiment: Experiment, split: Split, num_classes: int, batch_size: int
) -> Callable[[tf.Tensor], Batch]:
    """Return the function batch number -> Batch of a fixed shape, padded with weight 0."""

    def batch(number: tf.Tensor) -> Batch:
        with tf.device("CPU:0"):
            positions = number * batch_size + tf.range(batch_size, dtype=tf.int64)
            raw, labels = split.read(tf.minimum(positions, split.size - 1))
            images = evaluation_images(experiment, raw)
            weights = tf.cast(positions < split.size, tf.float32)
            images = fixed_size.scale(experiment.scaling, images)
            return Batch(images, tf.one_hot(labels, num_classes), labels, weights)

    return batch


def evaluation_images(experiment: Experiment, raw: tf.Tensor) -> tf.Tensor:
    """Return raw examples as evaluation and prediction take them, before scaling."""
    return preparation_of(raw).evaluation_images(experiment, raw)


def preparation_of(raw: tf.Tensor) -> ModuleType:
    """Return the module with `train_images` and `evaluation_images` for examples of this type."""
    return import_module(ENCODED) if raw.dtype == tf.string else fixed_size
