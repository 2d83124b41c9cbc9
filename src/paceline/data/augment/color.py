"""Random colours of training images, values of 0 to 255, in TensorFlow ops over a batch."""

from __future__ import annotations

import tensorflow as tf

from paceline.data.draws import Draws
from paceline.experiment.experiment import Augmentation

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel (ITU-R BT.601)."""


def change_colours(augment: Augmentation, images: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Change saturation and hue of each image by random amounts, in this order."""
    if not augment.saturation and not augment.hue:
        return images
    x = tf.cast(images, tf.float32)
    if augment.saturation:
        grey = tf.reduce_sum(x * GREY, axis=-1, keepdims=True)
        factor = 1.0 + random_amount(draws, "saturation", augment.saturation)
        x = tf.clip_by_value(grey + factor * (x - grey), 0.0, 255.0)
    if augment.hue:
        hue, *others = tf.unstack(tf.image.rgb_to_hsv(x / 255.0), axis=-1)
        turned = tf.math.floormod(hue + random_amount(draws, "hue", augment.hue)[..., 0], 1.0)
        x = tf.image.hsv_to_rgb(tf.stack([turned, *others], axis=-1)) * 255.0
    return x


def random_amount(draws: Draws, name: str, most: float) -> tf.Tensor:
    """Return a random number from -most to most for each image, float32 [n, 1, 1, 1]."""
    share = tf.cast(draws.one(name), tf.float32) / 2.0**30 - 1.0
    return (most * share)[:, None, None, None]
