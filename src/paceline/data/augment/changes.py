"""Random changes to training images beyond crops and flips, in TensorFlow ops over a batch.

`data.batches` imports this file only if an experiment asks for one of them.
"""

from __future__ import annotations

import tensorflow as tf

from paceline.data.draws import Draws, op_key, unit
from paceline.experiment.experiment import Augmentation, Experiment

GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel (ITU-R BT.601)."""
ERASED_AREA = (0.02, 0.33)
"""Share of an image's area that random erasing blanks: from, to."""
ERASED_ASPECT = 10 / 3
"""Aspect ratio of what it blanks: from the reciprocal to this."""

Mixed = tuple[tf.Tensor, tf.Tensor]
"""Images and targets."""


def before_scaling(settings: Augmentation, images: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Apply RandAugment; then change the saturation and the hue by random amounts."""
    if settings.rand_augment:
        from paceline.data.augment.rand_augment import rand_augment

        images = rand_augment(settings, images, draws)
    if settings.saturation:
        x = tf.cast(images, tf.float32)
        gray = tf.reduce_sum(x * GRAY, axis=-1, keepdims=True)
        factor = 1.0 + _amount(draws, "saturation", settings.saturation)
        images = tf.clip_by_value(gray + factor * (x - gray), 0.0, 255.0)
    if settings.hue:
        x = tf.cast(images, tf.float32)
        hue, *others = tf.unstack(tf.image.rgb_to_hsv(x / 255.0), axis=-1)
        turned = tf.math.floormod(hue + _amount(draws, "hue", settings.hue)[..., 0], 1.0)
        images = tf.image.hsv_to_rgb(tf.stack([turned, *others], axis=-1)) * 255.0
    return images


def after_scaling(settings: Augmentation, x: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Change contrast and brightness by random amounts, then blank a square and a rectangle."""
    if settings.contrast:
        x *= 1.0 + _amount(draws, "contrast", settings.contrast)
    if settings.brightness:
        x += _amount(draws, "brightness", settings.brightness)
    if side := settings.cutout:  # around a random pixel; it may stick out over the edge
        top = draws.one("cutout/row") % x.shape[1] - side // 2
        left = draws.one("cutout/column") % x.shape[2] - side // 2
        x = tf.where(_rectangle(x, top, left, side, side), 0.0, x)
    return _erase(settings.random_erasing, x, draws) if settings.random_erasing else x


def mix(
    experiment: Experiment,
    x: tf.Tensor,
    targets: tf.Tensor,
    draws: Draws,
    step: tf.Tensor,
    replica: tf.Tensor,
) -> Mixed:
    """Mix example i with example n-1-i of the replica's batch, and their targets with them, by
    mixup or cutmix; with both, each example gets one of them."""

    def share(name: str, alpha: float) -> tf.Tensor:
        """Return a Beta(alpha, alpha) distributed number for each example."""
        key, count = op_key(name, experiment.seed, step, replica), tf.shape(x)[0]
        gammas = tf.random.stateless_gamma([2, count], seed=key, alpha=alpha)
        return tf.maximum(gammas[0], 1e-30) / tf.maximum(gammas[0] + gammas[1], 1e-30)

    augment, ways = experiment.augment, [(x, targets)]
    if augment.mixup:
        ways.append(_mixup(share("mixup", augment.mixup), x, targets))
    if augment.cutmix:
        ways.append(_cutmix(share("cutmix", augment.cutmix), x, targets, draws))
    if len(ways) < 3:
        return ways[-1]
    by_mixup = draws.one("mixup or cutmix") % 2 == 0
    images = tf.where(by_mixup[:, None, None, None], ways[1][0], ways[2][0])
    return images, tf.where(by_mixup[:, None], ways[1][1], ways[2][1])


def _mixup(share: tf.Tensor, x: tf.Tensor, targets: tf.Tensor) -> Mixed:
    """Blend each image with its opposite: `share` of its own, the rest of the other."""
    wide = share[:, None, None, None]
    images = wide * x + (1 - wide) * x[::-1]
    return images, share[:, None] * targets + (1 - share[:, None]) * targets[::-1]


def _cutmix(share: tf.Tensor, x: tf.Tensor, targets: tf.Tensor, draws: Draws) -> Mixed:
    """Replace a rectangle around a random pixel by that of the opposite image.

    It has the proportions of the image and 1 - `share` of its area, before what sticks out over the
    edge is cut off. The targets are mixed by the area that was replaced.
    """
    height, width = x.shape[1:3]
    side = tf.sqrt(1 - tf.cast(share, tf.float64))
    tall, wide = (tf.cast(tf.round(side * length), tf.int64) for length in (height, width))
    top = draws.one("cutmix/row") % height - tall // 2
    left = draws.one("cutmix/column") % width - wide // 2
    other = _rectangle(x, top, left, tall, wide)
    replaced = tf.reduce_sum(tf.cast(other, tf.float32), [1, 2]) / float(height * width)
    return tf.where(other, x[::-1], x), (1 - replaced) * targets + replaced * targets[::-1]


def _erase(probability: float, x: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Blank a random rectangle of some images. No side is longer than the image."""
    parts = ("chance", "share", "aspect", "row", "column")
    numbers = draws.several([f"random-erasing/{part}" for part in parts])
    chance, share, slant, row, column = tf.unstack(numbers, axis=1)
    height, width = x.shape[1:3]
    least, most = ERASED_AREA
    area = (least + unit(share) * (most - least)) * (height * width)
    aspect = random_aspect(unit(slant), ERASED_ASPECT)
    tall, wide = (
        tf.cast(tf.clip_by_value(tf.round(tf.sqrt(pixels)), 1, longest), tf.int64)
        for pixels, longest in ((area / aspect, height), (area * aspect, width))
    )
    top, left = row % (height - tall + 1), column % (width - wide + 1)
    chosen = chance < round(probability * 2**31)
    return tf.where(_rectangle(x, top, left, tall, wide) & chosen[:, None, None, None], 0.0, x)


def _rectangle(
    x: tf.Tensor, top: tf.Tensor, left: tf.Tensor, tall: tf.Tensor | int, wide: tf.Tensor | int
) -> tf.Tensor:
    """Return which pixels of images [n, h, w, c] are in their rectangle, bool [n, h, w, 1].

    It begins at row `top` and column `left`, int64 [n], and may be partly outside.
    """

    def is_between(start: tf.Tensor, stop: tf.Tensor, length: int) -> tf.Tensor:
        positions = tf.range(length, dtype=tf.int64)[None]
        return (positions >= start[:, None]) & (positions < stop[:, None])

    rows = is_between(top, top + tall, x.shape[1])
    columns = is_between(left, left + wide, x.shape[2])
    return (rows[:, :, None] & columns[:, None, :])[..., None]


def random_aspect(slant: tf.Tensor, widest: float) -> tf.Tensor:
    """Return width by height, from the reciprocal of `widest` to it, for numbers of [0, 1).

    It is as often wide as tall.
    """
    stretch = 1.0 + tf.abs(2.0 * slant - 1.0) * (widest - 1.0)
    return tf.where(slant < 0.5, stretch, 1.0 / stretch)


def _amount(draws: Draws, name: str, most: float) -> tf.Tensor:
    """Return a random number from -most to most for each image, float32 [n, 1, 1, 1]."""
    share = tf.cast(draws.one(name), tf.float32) / 2.0**30 - 1.0
    return (most * share)[:, None, None, None]
