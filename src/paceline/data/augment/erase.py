"""Rectangles of training images, in TensorFlow ops over a batch: cutout and random erasing blank
one, cutmix (`data.augment.mix`) takes one from a different image."""

from __future__ import annotations

import tensorflow as tf

from paceline.data.draws import Draws, unit
from paceline.experiment.experiment import Augmentation

ERASED_AREA = (0.02, 0.33)
"""Share of an image's area that random erasing blanks: from, to."""
ERASED_ASPECT = 10 / 3
"""Aspect ratio of what it blanks: from the reciprocal to this."""


def cutout(augment: Augmentation, x: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Blank a square around a random pixel; it may stick out over the edge."""
    if not augment.cutout:
        return x
    centers = [draws.one(f"cutout/{axis}") % x.shape[k] for k, axis in ((1, "row"), (2, "column"))]
    top, left = (center - augment.cutout // 2 for center in centers)
    return tf.where(rectangle(x, top, left, augment.cutout, augment.cutout), 0.0, x)


def erase(augment: Augmentation, x: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Blank a random rectangle of some images, each with the probability `augment.random_erasing`.

    A side that would be longer than the image is as long as the image.
    """
    if not augment.random_erasing:
        return x
    parts = ("chance", "share", "aspect", "row", "column")
    numbers = draws.several([f"random-erasing/{part}" for part in parts])
    chance, share, slant, row, column = tf.unstack(numbers, axis=1)
    height, width = x.shape[1:3]
    least, most = ERASED_AREA
    area = (least + unit(share) * (most - least)) * (height * width)
    aspect = random_aspect(unit(slant), ERASED_ASPECT)
    tall = _side(tf.sqrt(area / aspect), height)
    wide = _side(tf.sqrt(area * aspect), width)
    top, left = row % (height - tall + 1), column % (width - wide + 1)
    chosen = chance < round(augment.random_erasing * 2**31)
    blank = rectangle(x, top, left, tall, wide) & chosen[:, None, None, None]
    return tf.where(blank, 0.0, x)


def rectangle(
    x: tf.Tensor, top: tf.Tensor, left: tf.Tensor, tall: tf.Tensor | int, wide: tf.Tensor | int
) -> tf.Tensor:
    """Return which pixels of images [n, h, w, c] are in their rectangle, bool [n, h, w, 1].

    It begins at row `top` and column `left`, int64 [n], and may be partly outside.
    """
    rows = _is_between(top, top + tall, x.shape[1])
    columns = _is_between(left, left + wide, x.shape[2])
    return (rows[:, :, None] & columns[:, None, :])[..., None]


def random_aspect(slant: tf.Tensor, widest: float) -> tf.Tensor:
    """Return width by height, from the reciprocal of `widest` to it, for numbers of [0, 1).

    It is as often wide as tall.
    """
    stretch = 1.0 + tf.abs(2.0 * slant - 1.0) * (widest - 1.0)
    return tf.where(slant < 0.5, stretch, 1.0 / stretch)


def _is_between(start: tf.Tensor, stop: tf.Tensor, length: int) -> tf.Tensor:
    positions = tf.range(length, dtype=tf.int64)[None]
    return (positions >= start[:, None]) & (positions < stop[:, None])


def _side(pixels: tf.Tensor, longest: int) -> tf.Tensor:
    return tf.cast(tf.clip_by_value(tf.round(pixels), 1, longest), tf.int64)
