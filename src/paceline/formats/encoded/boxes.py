"""Which part of an upright image of any size is cropped: random boxes for training, and the central
one for evaluation.

Only whole numbers, and + - x / and square roots of doubles: these give the same bits on every
machine, which exp and log do not.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from paceline.data.augment.changes import random_aspect
from paceline.data.draws import Draws, unit

TRIES = 10  # boxes drawn for a random area before the largest that fits is taken

_WIDEST = 4 / 3  # aspect ratio of a random area: from its reciprocal to this


class Box(NamedTuple):
    """int64 [n] each, in pixels."""

    top: tf.Tensor
    left: tf.Tensor
    height: tf.Tensor
    width: tf.Tensor


def area_box(height: tf.Tensor, width: tf.Tensor, draws: Draws, area_min: float) -> Box:
    """A box of a random share of the area, `area_min` to 1, and a random aspect, 3/4 to 4/3, at a
    random place.
    """
    tall, wide = tf.cast(height, tf.float64)[:, None], tf.cast(width, tf.float64)[:, None]
    share, slant = (
        unit(draws.several([f"{name}/{k}" for k in range(TRIES)]))
        for name in ("area/share", "area/aspect")
    )
    area = (area_min + share * (1.0 - area_min)) * tall * wide
    aspect = random_aspect(slant, _WIDEST)
    tries = tf.round(tf.sqrt(tf.stack([area / aspect, area * aspect], axis=-1)))
    fits = tf.reduce_all((tries >= 1) & (tries <= tf.stack([tall, wide], axis=-1)), axis=-1)
    largest = tf.round(
        tf.concat([tf.minimum(tall, wide * _WIDEST), tf.minimum(wide, tall * _WIDEST)], axis=1)
    )
    drawn = tf.gather(tries, tf.argmax(fits, axis=1), batch_dims=1)
    sides = tf.cast(
        tf.where(tf.reduce_any(fits, axis=1)[:, None], drawn, tf.maximum(largest, 1.0)), tf.int64
    )
    return _placed(height, width, sides[:, 0], sides[:, 1], draws)


def short_side_box(height: tf.Tensor, width: tf.Tensor, draws: Draws, size: int) -> Box:
    """A square at a random place: `size` pixels of the image whose short side was made 256/224 to
    512/224 times `size`."""
    shortest, longest = short_side(size), 2 * short_side(size)
    short = shortest + draws.one("short-side") % (longest - shortest + 1)
    side = _side(height, width, size, short)
    return _placed(height, width, side, side, draws)


def central_box(height: tf.Tensor, width: tf.Tensor, size: int) -> Box:
    """The square in the middle: `size` pixels of the image whose short side was made 256/224
    times `size`."""
    side = _side(height, width, size, short_side(size))
    return Box((height - side) // 2, (width - side) // 2, side, side)


def fitting_box(height: tf.Tensor, width: tf.Tensor, tall: int, wide: int) -> Box:
    """The largest box in the middle with the proportions of `tall` x `wide`."""
    rows = tf.minimum(height, tf.maximum((width * tall + wide // 2) // wide, 1))
    columns = tf.minimum(width, tf.maximum((height * wide + tall // 2) // tall, 1))
    return Box((height - rows) // 2, (width - columns) // 2, rows, columns)


def short_side(size: int) -> int:
    """Return 8/7 of the size, rounded: 256 for 224."""
    return (size * 8 + 3) // 7


def _side(height: tf.Tensor, width: tf.Tensor, size: int, short: tf.Tensor | int) -> tf.Tensor:
    return tf.maximum((2 * size * tf.minimum(height, width) + short) // (2 * short), 1)


def _placed(
    height: tf.Tensor, width: tf.Tensor, tall: tf.Tensor, wide: tf.Tensor, draws: Draws
) -> Box:
    top = draws.one("crop/row") % (height - tall + 1)
    return Box(top, draws.one("crop/column") % (width - wide + 1), tall, wide)
