"""Random changes to training images beyond crops and flips, in TensorFlow ops over a batch.

`data.batches` imports this file only if an experiment asks for one of them.
"""

from functools import cache

import numpy as np
import tensorflow as tf

from paceline.data.draws import Draws, unit
from paceline.experiment.experiment import Augmentation, Experiment
from paceline.experiment.schedule import power
from paceline.kernels.arithmetic import Operand, number, plain, total

GRAY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel (ITU-R BT.601)."""
ERASED_AREA = (0.02, 0.33)
"""Share of an image's area that random erasing blanks: from, to."""
ERASED_ASPECT = 10 / 3
"""Aspect ratio of what it blanks: from the reciprocal to this."""

QUANTILES = 8192
"""Numbers by which the shares of mixup and cutmix are drawn."""

Mixed = tuple[tf.Tensor, tf.Tensor]
"""Images and targets."""


def before_scaling(settings: Augmentation, images: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Apply RandAugment; then change the saturation and the hue by random amounts."""
    if settings.rand_augment:
        from paceline.data.augment.rand_augment import rand_augment

        images = rand_augment(settings, images, draws)
    if settings.saturation:
        x = number(tf.cast(images, tf.float32))
        gray = total(plain(x * GRAY), -1)[..., None]
        factor = 1.0 + _amount(draws, "saturation", settings.saturation)
        images = tf.clip_by_value(plain(gray + factor * (x - gray)), 0.0, 255.0)
    if settings.hue:
        turn = _amount(draws, "hue", settings.hue) * 6.0
        images = _turned_hue(tf.cast(images, tf.float32), plain(turn)[..., 0])
    return images


def after_scaling(settings: Augmentation, x: tf.Tensor, draws: Draws) -> tf.Tensor:
    """Change contrast and brightness by random amounts, then blank a square and a rectangle."""
    if settings.contrast:
        x = plain((1.0 + _amount(draws, "contrast", settings.contrast)) * x)
    if settings.brightness:
        x = plain(_amount(draws, "brightness", settings.brightness) + x)
    if side := settings.cutout:  # around a random pixel; it may stick out over the edge
        top = draws.one("cutout/row") % x.shape[1] - side // 2
        left = draws.one("cutout/column") % x.shape[2] - side // 2
        x = tf.where(_rectangle(x, top, left, side, side), 0.0, x)
    return _erase(settings.random_erasing, x, draws) if settings.random_erasing else x


def mix(experiment: Experiment, x: tf.Tensor, targets: tf.Tensor, draws: Draws) -> Mixed:
    """Mix example i with example n-1-i of the replica's batch, and their targets with them, by
    mixup or cutmix; with both, each example gets one of them."""

    def share(name: str, alpha: float) -> tf.Tensor:
        """Return a Beta(alpha, alpha) distributed number for each example."""
        return tf.gather(beta_quantiles(alpha), draws.one(name) % QUANTILES)

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


@cache
def beta_quantiles(alpha: float) -> np.ndarray:
    """Return the Beta(alpha, alpha) distribution as float32 numbers of equal probability.

    For x up to 1/2, its integral is that of (1 - v ** (1 / alpha)) ** (alpha - 1) over v up to
    x ** alpha, which is finite for every alpha; the rest is its mirror image.
    """
    half = QUANTILES // 2
    v = np.array([power(0.5, alpha) * k / half for k in range(half + 1)])
    x = np.array([power(each, 1 / alpha) for each in v.tolist()])
    density = np.array([power(1 - each, alpha) / (1 - each) for each in x.tolist()])
    integral = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    wanted = integral[-1] * (np.arange(half) + 0.5) / half
    lower = np.interp(wanted, integral, x)
    return np.concatenate([lower, 1 - lower[::-1]]).astype(np.float32)


def _turned_hue(x: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
    """Turn the hue of pixels by some sixths of the color circle, each image by its own. The largest
    and the smallest channel stay; hue is where the third is between them."""
    most, least = tf.reduce_max(x, -1), tf.reduce_min(x, -1)
    red, green, blue = (number(each) for each in tf.unstack(x, axis=-1))
    spread = plain(number(most) - least)
    safe = tf.where(spread > 0, spread, 1.0)
    by_channel = ((green - blue) / safe, (blue - red) / safe + 2.0, (red - green) / safe + 4.0)
    of_red, of_green, of_blue = (plain(each) for each in by_channel)
    largest = tf.argmax(x, -1, output_type=tf.int32)
    hue = tf.where(largest == 0, of_red, tf.where(largest == 1, of_green, of_blue))
    hue = plain(number(hue) + turn + 12.0)  # positive; whole turns do not matter
    channels = []
    for offset in (0.0, 4.0, 2.0):  # how near a channel's own hue is: 0 to 1 is the least
        turned = tf.math.floormod(plain(number(hue) + offset), 6.0)
        distance = tf.abs(plain(number(turned) - 3.0))
        share = tf.clip_by_value(plain(number(distance) - 1.0), 0.0, 1.0)
        channels.append(plain(number(least) + number(spread) * share))
    return tf.stack(channels, -1)


def _mixup(share: tf.Tensor, x: tf.Tensor, targets: tf.Tensor) -> Mixed:
    """Blend each image with its opposite: `share` of its own, the rest of the other."""
    wide, narrow = number(share[:, None, None, None]), number(share[:, None])
    images = plain(wide * x + (1 - wide) * x[::-1])
    return images, plain(narrow * targets + (1 - narrow) * targets[::-1])


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
    pixels = tf.math.count_nonzero(other, [1, 2], dtype=tf.int32)
    replaced = number(tf.cast(pixels, tf.float32)) / float(height * width)
    mixed = plain((1 - replaced) * targets + replaced * targets[::-1])
    return tf.where(other, x[::-1], x), mixed


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
    """Return which pixels of images [n, h, w, c] are in their rectangle, bool [n, h, w, 1]. It
    begins at row `top` and column `left`, int64 [n], and may be partly outside."""

    def is_between(start: tf.Tensor, stop: tf.Tensor, length: int) -> tf.Tensor:
        positions = tf.range(length, dtype=tf.int64)[None]
        return (positions >= start[:, None]) & (positions < stop[:, None])

    rows = is_between(top, top + tall, x.shape[1])
    columns = is_between(left, left + wide, x.shape[2])
    return (rows[:, :, None] & columns[:, None, :])[..., None]


def random_aspect(slant: tf.Tensor, widest: float) -> tf.Tensor:
    """Return width by height, from the reciprocal of `widest` to it, for numbers of [0, 1). It is
    as often wide as tall."""
    stretch = 1.0 + tf.abs(2.0 * slant - 1.0) * (widest - 1.0)
    return tf.where(slant < 0.5, stretch, 1.0 / stretch)


def _amount(draws: Draws, name: str, most: float) -> Operand:
    """Return a random number from -most to most for each image, float32 [n, 1, 1, 1]."""
    drawn = tf.cast(draws.one(name), tf.float32)[:, None, None, None]
    return most * (number(drawn) * 2.0**-30 - 1.0)
