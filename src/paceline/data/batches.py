"""(step, replica) -> the prepared batch that a replica trains on, and batch number -> an evaluation
batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import tensorflow as tf

from paceline.data import order
from paceline.data.augment import crop as augment
from paceline.data.augment.color import change_colours
from paceline.data.augment.erase import cutout, erase
from paceline.data.augment.mix import mix
from paceline.data.augment.rand_augment import rand_augment
from paceline.data.draws import Draws
from paceline.data.source import Source, Split
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Experiment
from paceline.formats.encoded import prepare as encoded

Shape = tuple[int, int, int]
"""Height, width, channels."""


class Batch(NamedTuple):
    """images float32 [n, h, w, c]; targets float32 [n, classes] sum to one; labels int32 [n];
    weights float32 [n], 0 for padding."""

    images: tf.Tensor
    targets: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


def image_shape(experiment: Experiment, source: Source) -> Shape:
    """Return the shape of the images that the model sees."""
    settings = experiment.augment
    if source.image_shape is None and not experiment.data.image_size:
        raise UserError(
            "data.image-size is 0, but these images have any size; give one, such as "
            "--data.image-size 224"
        )
    for name, pixels in (("padding", settings.padding), ("crop-size", settings.crop_size)):
        if source.image_shape is None and pixels:
            raise UserError(
                f"augment.{name} is {pixels}; images of any size are cropped by augment.crop "
                "instead: use 0"
            )
    for name, strength in (("saturation", settings.saturation), ("hue", settings.hue)):
        if strength and source.image_shape and source.image_shape[2] != 3:
            raise UserError(
                f"augment.{name} is {strength}, but these images have {source.image_shape[2]} "
                "channels; it is for colors: use 0"
            )
    if source.image_shape is not None and settings.padding_mode == "reflect":
        _check_reflected(settings, source.image_shape)
    return model_shape(experiment, source.image_shape)


def _check_reflected(settings: Augmentation, stored: Shape) -> None:
    sides = {side: (settings.crop_size or side) - side for side in stored[:2]}
    for side, beyond in {**dict.fromkeys(settings.sizes, 0), **sides}.items():
        most = settings.padding + max(0, beyond - beyond // 2)
        if most >= side:
            raise UserError(
                f"augment.padding-mode reflect cannot add {most} pixels to images of {side} "
                f"pixels; use {side - 1} or fewer"
            )


def model_shape(experiment: Experiment, stored: Shape | None) -> Shape:
    """Return the shape that the model sees of images of shape `stored`; None: encoded images."""
    size = experiment.data.image_size
    height, width, channels = stored or (size, size, 3)
    side = size or experiment.augment.crop_size
    return side or height, side or width, channels


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

    def batch(step: tf.Tensor, replica: tf.Tensor) -> Batch:
        with tf.device("CPU:0"):
            epoch, indices = order.slice_indices(experiment, train.size, step, replica)
            raw, labels = train.read(indices)
            draws = Draws(experiment.seed, epoch, indices)
            images = _train_images(experiment, raw, draws, image_size)
            images = change_colours(settings, rand_augment(settings, images, draws), draws)
            images = augment.jitter(settings, augment.scale(experiment.scaling, images), draws)
            images = erase(settings, cutout(settings, images, draws), draws)
            images, targets = mix(experiment, images, targets_of(labels), draws, step, replica)
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
            images = evaluation_images(experiment, raw, indices)
            weights = tf.cast(positions < split.size, tf.float32)
            return Batch(
                augment.scale(experiment.scaling, images),
                tf.one_hot(labels, num_classes),
                labels,
                weights,
            )

    return batch


def evaluation_images(experiment: Experiment, raw: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """Return raw examples as evaluation and prediction take them, before scaling."""
    if _is_encoded(raw):
        return encoded.evaluation_images(raw, experiment.data.image_size, indices)
    if experiment.augment.crop_size:
        return augment.centre(experiment.augment, raw)
    return augment.resize(raw, experiment.data.image_size)


def prepare_encoded(
    experiment: Experiment, stored: Shape | None, encoded_images: tf.Tensor, fitting: bool = False
) -> tf.Tensor:
    """JPEG and PNG images of any size, strings [n], as evaluation would see them: for prediction.
    Where the source has images of one shape, they are made to fit it first, unless they do
    already."""
    with tf.device("CPU:0"):
        raw = encoded.fitted_images(encoded_images, stored, fitting) if stored else encoded_images
        images = evaluation_images(experiment, raw, tf.range(tf.size(encoded_images)))
        return augment.scale(experiment.scaling, images)


def _train_images(
    experiment: Experiment, raw: tf.Tensor, draws: Draws, image_size: int
) -> tf.Tensor:
    settings = experiment.augment
    if _is_encoded(raw):
        return encoded.train_images(settings, image_size or experiment.data.image_size, raw, draws)
    if image_size:
        small = augment.resize(raw, image_size)
        small = tf.saturate_cast(tf.round(small), tf.uint8)
        return augment.augment(replace(settings, crop_size=0), small, draws)
    return augment.resize(augment.augment(settings, raw, draws), experiment.data.image_size)


def _is_encoded(raw: tf.Tensor) -> bool:
    return raw.dtype == tf.string
