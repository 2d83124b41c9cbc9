"""Random crop and flip of images of one size, and resizing; in TensorFlow ops over a batch."""

from __future__ import annotations

import tensorflow as tf

from paceline.data.draws import Draws
from paceline.experiment.experiment import Augmentation


def mirrored(settings: Augmentation, draws: Draws) -> tf.Tensor:
    """Return which images are flipped, bool [n].

    With `alternate_flip` an image is flipped in every second epoch; which of the two is random.
    """
    if not settings.flip:
        return tf.zeros_like(draws.indices, tf.bool)
    if settings.alternate_flip:
        first = Draws(draws.seed, tf.zeros_like(draws.epoch), draws.indices)
        return (first.one("flip") + draws.epoch) % 2 == 1
    return draws.one("flip") % 2 == 1


def crop_and_flip(settings: Augmentation, images: tf.Tensor, draws: Draws) -> tf.Tensor:
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


def crop_center(settings: Augmentation, images: tf.Tensor) -> tf.Tensor:
    """Return the crop of `augment.crop_size` in the center; images that are smaller are padded."""
    size, (height, width) = settings.crop_size, images.shape[1:3]
    pixels = tf.range(size, dtype=tf.int64)[None]
    return _take(settings, images, pixels - (size - height) // 2, pixels - (size - width) // 2)


def _take(
    settings: Augmentation, images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor
) -> tf.Tensor:
    """Return the pixels at rows [n or 1, y] and columns [n or 1, x], which may be outside."""
    height, width, channels = images.shape[1:]
    if settings.padding_mode == "reflect":
        rows, columns = _reflected(rows, height), _reflected(columns, width)
        pad = 0
    else:
        beyond = [(settings.crop_size or side) - side for side in (height, width)]
        pad = settings.padding + max(0, *(each - each // 2 for each in beyond))
    padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]]) if pad else images
    tall, wide = height + 2 * pad, width + 2 * pad
    first = tf.range(tf.shape(images, tf.int64)[0])[:, None, None] * tall
    pixels = (first + rows[:, :, None] + pad) * wide + columns[:, None, :] + pad
    return tf.gather(tf.reshape(padded, [-1, channels]), pixels)


def _reflected(positions: tf.Tensor, length: int) -> tf.Tensor:
    """Return positions in [0, length); the edge itself is not repeated."""
    return (length - 1) - tf.abs((length - 1) - tf.abs(positions))


def resize(images: tf.Tensor, size: int) -> tf.Tensor:
    """Resize the short side to `size` unless that is 0, and crop the middle of the long side."""
    height, width = images.shape[1:3]
    if not size or (height, width) == (size, size):
        return images
    tall, wide = max(size, round(height * size / width)), max(size, round(width * size / height))
    resized = tf.image.resize(images, [tall, wide], antialias=True)
    top, left = (tall - size) // 2, (wide - size) // 2
    return resized[:, top : top + size, left : left + size]
