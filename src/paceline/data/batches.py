"""(step, replica) -> the prepared batch that a replica trains on, and batch number -> an evaluation
batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from paceline.config.experiment import Data, Experiment
from paceline.data import augment, encoded, order
from paceline.data.draws import Draws
from paceline.data.source import Source, Split
from paceline.errors import UserError

Shape = tuple[int, int, int]
"""Height, width, channels."""


class Batch(NamedTuple):
    """images float32 [n, h, w, c]; targets float32 [n, classes] sum to one; labels int32 [n];
    weights float32 [n], 0 for padding."""

    images: tf.Tensor
    targets: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


def image_shape(data: Data, source: Source) -> Shape:
    """Return the shape of the images that the model sees."""
    if source.image_shape is None and not data.image_size:
        raise UserError(
            "data.image-size is 0, but these images have any size; give one, such as "
            "--data.image-size 224"
        )
    if source.image_shape is None and data.padding:
        raise UserError(
            f"data.padding is {data.padding}; images of any size are cropped by data.crop "
            "instead: use 0"
        )
    return model_shape(data, source.image_shape)


def model_shape(data: Data, stored: Shape | None) -> Shape:
    """Return the shape that the model sees of images of shape `stored`; None: encoded images."""
    height, width, channels = stored or (data.image_size, data.image_size, 3)
    return data.image_size or height, data.image_size or width, channels


def build_train_batches(
    experiment: Experiment, train: Split, targets_of: Callable[[tf.Tensor], tf.Tensor]
) -> Callable[[tf.Tensor, tf.Tensor], Batch]:
    """Return the function (step, replica) -> Batch; both are int64 scalars.

    `targets_of` turns labels into what the loss compares the outputs with.
    """
    data, size = experiment.data, experiment.replica_batch_size

    def batch(step: tf.Tensor, replica: tf.Tensor) -> Batch:
        with tf.device("CPU:0"):
            epoch, indices = order.slice_indices(experiment, train.size, step, replica)
            raw, labels = train.read(indices)
            draws = Draws(experiment.seed, epoch, indices)
            images = augment.scale(data, _train_images(data, raw, draws))
            images = augment.cutout(data, images, draws)
            targets = targets_of(labels)
            images, targets = augment.mixup(experiment, images, targets, step, replica)
            return Batch(images, targets, labels, tf.ones([size]))

    return batch


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
            images = evaluation_images(experiment.data, raw, indices)
            weights = tf.cast(positions < split.size, tf.float32)
            return Batch(
                augment.scale(experiment.data, images),
                tf.one_hot(labels, num_classes),
                labels,
                weights,
            )

    return batch


def evaluation_images(data: Data, raw: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Return raw examples as evaluation and prediction take them, before scaling."""
    if _is_encoded(raw):
        return encoded.evaluation_images(raw, data.image_size, indices)
    return augment.resize(data, raw)


def prepare_encoded(
    data: Data, stored: Shape | None, encoded_images: tf.Tensor, fitting: bool = False
) -> tf.Tensor:
    """JPEG and PNG images of any size, strings [n], as evaluation would see them: for prediction.
    Where the source has images of one shape, they are made to fit it first, unless they do
    already."""
    with tf.device("CPU:0"):
        raw = encoded.fitted_images(encoded_images, stored, fitting) if stored else encoded_images
        return augment.scale(data, evaluation_images(data, raw, tf.range(tf.size(encoded_images))))


def _train_images(data: Data, raw: tf.Tensor, draws: Draws) -> tf.Tensor:
    if _is_encoded(raw):
        return encoded.train_images(data, raw, draws)
    return augment.resize(data, augment.augment(data, raw, draws))


def _is_encoded(raw: tf.Tensor) -> bool:
    return raw.dtype == tf.string
