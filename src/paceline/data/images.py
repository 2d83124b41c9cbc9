"""Images of one size, as stored -> cropped, flipped, resized and scaled; in TensorFlow ops over a
batch. `formats.encoded.prepare` is its twin for encoded images of any size."""

import math
from dataclasses import replace

import numpy as np
import tensorflow as tf

from paceline.data.draws import Draws
from paceline.data.source import Shape, Source
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Experiment, Scaling
from paceline.kernels.arithmetic import mean, number, plain, resized, square_root


def train_images(
    experiment: Experiment, raw: tf.Tensor, draws: Draws, image_size: int
) -> tf.Tensor:
    """Return random crops. `image_size` is a side other than the usual one, or 0."""
    settings = experiment.augment
    if image_size:
        small = tf.saturate_cast(tf.round(_resize(raw, image_size)), tf.uint8)
        return _crop_and_flip(replace(settings, crop_size=0), small, draws)
    return _resize(_crop_and_flip(settings, raw, draws), experiment.data.image_size)


def evaluation_images(experiment: Experiment, raw: tf.Tensor) -> tf.Tensor:
    """Return central crops. Images smaller than `augment.crop_size` are padded."""
    if not (size := experiment.augment.crop_size):
        return _resize(raw, experiment.data.image_size)
    pixels = tf.range(size, dtype=tf.int64)[None]
    rows, columns = (pixels - (size - side) // 2 for side in raw.shape[1:3])
    return _take(experiment.augment, raw, rows, columns)


def mirrored(settings: Augmentation, draws: Draws) -> tf.Tensor:
    """Return which images are flipped, bool [n]. With `alternate_flip` each is flipped in every
    second epoch; which of the two is random."""
    if not settings.flip:
        return tf.zeros_like(draws.indices, tf.bool)
    if settings.alternate_flip:
        first = replace(draws, epoch=tf.zeros_like(draws.epoch))
        return (first.one("flip") + draws.epoch) % 2 == 1
    return draws.one("flip") % 2 == 1


def _crop_and_flip(settings: Augmentation, images: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Crop and flip uint8 [n, h, w, c] at random, with one gather of pixels."""
    if not settings.padding and not settings.flip and not settings.crop_size:
        return images
    height, width = images.shape[1:3]
    tall, wide = settings.crop_size or height, settings.crop_size or width
    rows = tf.range(tall, dtype=tf.int64)[None]
    columns = tf.range(wide, dtype=tf.int64)[None]
    if settings.flip:
        columns = tf.where(mirrored(settings, draws)[:, None], wide - 1 - columns, columns)
    if settings.padding:
        shifts = 2 * settings.padding + 1
        rows += draws.one("crop/row")[:, None] % shifts - settings.padding
        columns += draws.one("crop/column")[:, None] % shifts - settings.padding
    return _take(settings, images, rows - (tall - height) // 2, columns - (wide - width) // 2)


def _take(
    settings: Augmentation, images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor
) -> tf.Tensor:
    """Return the pixels at rows [n or 1, y] and columns [n or 1, x], which may be outside."""
    height, width, channels = images.shape[1:]
    if settings.padding_mode == "reflect":  # the edge itself is not repeated
        rows = (height - 1) - tf.abs((height - 1) - tf.abs(rows))
        columns = (width - 1) - tf.abs((width - 1) - tf.abs(columns))
        pad = 0
    else:
        pad = max(_outermost(settings, side) for side in (height, width))
    padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]]) if pad else images
    tall, wide = height + 2 * pad, width + 2 * pad
    first = tf.range(tf.shape(images, tf.int64)[0])[:, None, None] * tall
    pixels = (first + rows[:, :, None] + pad) * wide + columns[:, None, :] + pad
    return tf.gather(tf.reshape(padded, [-1, channels]), pixels)


def _outermost(settings: Augmentation, side: int) -> int:
    """Return how many pixels beyond the edge of an image a crop may take."""
    beyond = (settings.crop_size or side) - side
    return settings.padding + max(0, beyond - beyond // 2)


def _resize(images: tf.Tensor, size: int) -> tf.Tensor:
    """Resize the short side to `size` unless that is 0, and crop the middle of the long side."""
    height, width = images.shape[1:3]
    if not size or (height, width) == (size, size):
        return images
    tall, wide = max(size, round(height * size / width)), max(size, round(width * size / height))
    large = resized(images, [tall, wide])
    top, left = (tall - size) // 2, (wide - size) // 2
    return large[:, top : top + size, left : left + size]


def scale(scaling: Scaling, images: tf.Tensor) -> tf.Tensor:
    """Scale values of 0 to 255 to the float32 range of the experiment."""
    assert scaling.method != "application", "`models.fine_tuning` puts a scaling in its place"
    x = tf.cast(images, tf.float32)
    if scaling.method == "standardize":
        return _standardized(x)
    if scaling.method == "unit":
        return plain(number(x) * (1 / 128) - 1.0)
    _, height, width, channels = images.shape
    # by rows, because broadcasting along three channels takes a multiple of the time
    means, factors = (
        np.tile(np.array(each[:channels], np.float32), width)
        for each in (scaling.mean, 1 / np.array(scaling.std, np.float32))
    )
    rows = number(tf.reshape(x, [-1, width * channels])) - means
    if scaling.method == "mean_std":
        rows *= factors
    scaled = tf.reshape(plain(rows), [-1, height, width, channels])
    return tf.reverse(scaled, [-1]) if scaling.method == "bgr_mean" else scaled


def _standardized(x: tf.Tensor) -> tf.Tensor:
    """Return each image with mean 0 and deviation 1; a deviation near 0 counts as larger."""
    flat = tf.reshape(x, [-1, math.prod(x.shape[1:])])
    centered = number(flat) - mean(flat, 1)[:, None]
    deviation = plain(square_root(number(mean(plain(centered * centered), 1))))
    least = 1 / math.sqrt(flat.shape[1])
    return tf.reshape(plain(centered / tf.maximum(deviation, least)[:, None]), tf.shape(x))


def model_shape(experiment: Experiment, stored: Shape | None) -> Shape:
    """Return the shape that the model sees of images of shape `stored`; None: encoded images."""
    size = experiment.data.image_size
    height, width, channels = stored or (size, size, 3)
    side = size or experiment.augment.crop_size
    return side or height, side or width, channels


def image_shape(experiment: Experiment, source: Source) -> Shape:
    """Return the shape of the images that the model sees, if the settings fit the source."""
    settings, stored = experiment.augment, source.image_shape
    if stored is None and not experiment.data.image_size:
        raise UserError(
            "data.image-size is 0, but these images have any size; give one, such as "
            "--data.image-size 224"
        )
    unfit, reason = ["padding", "crop_size"], "images of any size are cropped by augment.crop"
    if stored:
        unfit, reason = ["saturation", "hue"], f"these images have {stored[2]} channels"
    for name in unfit if not stored or stored[2] != 3 else ():
        if given := getattr(settings, name):
            flag = name.replace("_", "-")
            raise UserError(f"augment.{flag} is {given}, but {reason}; use 0")
    if stored and settings.padding_mode == "reflect":
        added = {side: _outermost(settings, side) for side in stored[:2]}
        for side, most in (dict.fromkeys(settings.sizes, settings.padding) | added).items():
            if most >= side:
                raise UserError(
                    f"augment.padding-mode reflect cannot add {most} pixels to images of {side} "
                    f"pixels; use {side - 1} or fewer"
                )
    return model_shape(experiment, stored)
