"""Mixup and cutmix: each example is mixed with the one opposite in its replica's slice, and their
targets with them; in TensorFlow ops over a batch."""

from __future__ import annotations

import tensorflow as tf

from paceline.data.augment.erase import rectangle
from paceline.data.draws import Draws, op_key
from paceline.experiment.experiment import Experiment

Mixed = tuple[tf.Tensor, tf.Tensor]
"""Images and targets."""


def mix(
    experiment: Experiment,
    x: tf.Tensor,
    targets: tf.Tensor,
    draws: Draws,
    step: tf.Tensor,
    replica: tf.Tensor,
) -> Mixed:
    """Return images and targets after mixup or cutmix; with both, each example gets one of them."""
    augment = experiment.augment
    ways = []
    if augment.mixup:
        share = _beta("mixup", augment.mixup, experiment.seed, tf.shape(x)[0], step, replica)
        ways.append(_mixup(share, x, targets))
    if augment.cutmix:
        share = _beta("cutmix", augment.cutmix, experiment.seed, tf.shape(x)[0], step, replica)
        ways.append(_cutmix(share, x, targets, draws))
    if len(ways) < 2:
        return ways[0] if ways else (x, targets)
    by_mixup = draws.one("mixup or cutmix") % 2 == 0
    images = tf.where(by_mixup[:, None, None, None], ways[0][0], ways[1][0])
    return images, tf.where(by_mixup[:, None], ways[0][1], ways[1][1])


def _beta(
    name: str, alpha: float, seed: int, count: tf.Tensor, step: tf.Tensor, replica: tf.Tensor
) -> tf.Tensor:
    """Return a Beta(alpha, alpha) distributed number for each example."""
    key = op_key(name, seed, step, replica)
    gammas = tf.random.stateless_gamma([2, count], seed=key, alpha=alpha)
    return tf.maximum(gammas[0], 1e-30) / tf.maximum(gammas[0] + gammas[1], 1e-30)


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
    other = rectangle(x, top, left, tall, wide)
    replaced = tf.reduce_sum(tf.cast(other, tf.float32), [1, 2]) / float(height * width)
    return tf.where(other, x[::-1], x), (1 - replaced) * targets + replaced * targets[::-1]
