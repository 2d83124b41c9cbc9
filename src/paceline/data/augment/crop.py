"""Images -> what the model sees: random crop and flip, then scaling; in TensorFlow ops, vectorised
over a batch. `colour`, `rand_augment`, `rectangles` and `mixing` have the other augmentations.

Every random choice is a function of (seed, epoch, index), so it does not matter who prepares an
example, or when.
"""

from __future__ import annotations

import tensorflow as tf

from paceline.data.augment.color import random_amount
from paceline.data.draws import Draws
from paceline.experiment.experiment import Augmentation, Scaling


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


def augment(settings: Augmentation, images: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Random crop and flip of uint8 [n, h, w, c], by one gather of pixels from the padded
    images."""
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


def centre(settings: Augmentation, images: tf.Tensor) -> tf.Tensor:
    """Return the crop of `augment.crop_size` in the center; images that are smaller are padded."""
    size, (height, width) = settings.crop_size, images.shape[1:3]
    places = tf.range(size, dtype=tf.int64)[None]
    return _take(settings, images, places - (size - height) // 2, places - (size - width) // 2)


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


def _reflected(places: tf.Tensor, length: int) -> tf.Tensor:
    """Return places in [0, length); the edge itself is not repeated."""
    return (length - 1) - tf.abs((length - 1) - tf.abs(places))


def jitter(settings: Augmentation, x: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Change the contrast and brightness of each image by random amounts, after scaling."""
    if settings.contrast:
        x *= 1.0 + random_amount(draws, "contrast", settings.contrast)
    if settings.brightness:
        x += random_amount(draws, "brightness", settings.brightness)
    return x


def scale(scaling: Scaling, images: tf.Tensor) -> tf.Tensor:
    """Scale values of 0 to 255 to the float32 range of the experiment."""
    assert scaling.method != "application", "`models.applications` puts a scaling in its place"
    x = tf.cast(images, tf.float32)
    if scaling.method == "standardize":
        return tf.image.per_image_standardization(x)
    if scaling.method == "unit":
        return x / 128.0 - 1.0
    _, height, width, channels = images.shape
    # by whole rows: with three channels as the inner dimension, TensorFlow's broadcasting takes a
    # multiple of the time
    rows = tf.reshape(x, [-1, width * channels]) - tf.tile(
        tf.constant(scaling.mean[:channels], tf.float32), [width]
    )
    if scaling.method == "mean_std":
        rows /= tf.tile(tf.constant(scaling.std[:channels], tf.float32), [width])
    scaled = tf.reshape(rows, [-1, height, width, channels])
    return tf.reverse(scaled, [-1]) if scaling.method == "bgr_mean" else scaled


def resize(images: tf.Tensor, size: int) -> tf.Tensor:
    """Resize the short side to `size` unless that is 0, and crop the middle of the long side."""
    height, width = images.shape[1:3]
    if not size or (height, width) == (size, size):
        return images
    tall, wide = max(size, round(height * size / width)), max(size, round(width * size / height))
    resized = tf.image.resize(images, [tall, wide], antialias=True)
    top, left = (tall - size) // 2, (wide - size) // 2
    return resized[:, top : top + size, left : left + size]
