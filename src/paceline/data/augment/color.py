"""Random changes of the colors of training images, in TensorFlow ops over a batch."""

from __future__ import annotations

import tensorflow as tf

from paceline.data.draws import Draws
from paceline.experiment.experiment import Augmentation

GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel (ITU-R BT.601)."""


def change_colors(settings: Augmentation, images: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Change the saturation and then the hue of each image by random amounts, before scaling."""
    if not settings.saturation and not settings.hue:
        return images
    x = tf.cast(images, tf.float32)
    if settings.saturation:
        gray = tf.reduce_sum(x * GRAY, axis=-1, keepdims=True)
        factor = 1.0 + random_amount(draws, "saturation", settings.saturation)
        x = tf.clip_by_value(gray + factor * (x - gray), 0.0, 255.0)
    if settings.hue:
        hue, *others = tf.unstack(tf.image.rgb_to_hsv(x / 255.0), axis=-1)
        turned = tf.math.floormod(hue + random_amount(draws, "hue", settings.hue)[..., 0], 1.0)
        x = tf.image.hsv_to_rgb(tf.stack([turned, *others], axis=-1)) * 255.0
    return x


def jitter(settings: Augmentation, x: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Change the contrast and brightness of each image by random amounts, after scaling."""
    if settings.contrast:
        x *= 1.0 + random_amount(draws, "contrast", settings.contrast)
    if settings.brightness:
        x += random_amount(draws, "brightness", settings.brightness)
    return x


def random_amount(draws: Draws, name: str, most: float) -> tf.Tensor:
    """Return a random number from -most to most for each image, float32 [n, 1, 1, 1]."""
    share = tf.cast(draws.one(name), tf.float32) / 2.0**30 - 1.0
    return (most * share)[:, None, None, None]
