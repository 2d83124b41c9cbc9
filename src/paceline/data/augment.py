"""Pictures -> what the model sees: random crop, flip, cutout and mixup, then scaling; in TensorFlow ops, vectorised over a batch.

Every random choice is a function of (seed, epoch, index), so it does not matter who prepares an example, or when.
"""

from __future__ import annotations

import tensorflow as tf

from paceline.config.experiment import Data

NUM_BITS = 5
"""Random numbers of an example: row, column, flip, two of cutout."""


def random_bits(seed: int, epoch: tf.Tensor, indices: tf.Tensor, count: int) -> tf.Tensor:
    """`count` random numbers below 2**31 for each example: int64 [n, count], the splitmix64 hash of (seed, epoch, index, number).

    TensorFlow's own stateless ops take one key per call, not one per example.
    """
    key = _mix(tf.cast(epoch, tf.uint64) + _mix(tf.constant(seed % 2**63, tf.uint64)))
    lanes = tf.cast(indices, tf.uint64)[:, None] * tf.constant(count, tf.uint64) + tf.cast(
        tf.range(count), tf.uint64
    )
    return tf.cast(tf.bitwise.right_shift(_mix(lanes + key), tf.constant(33, tf.uint64)), tf.int64)


def alternate_flips(
    data: Data, bits: tf.Tensor, seed: int, epoch: tf.Tensor, indices: tf.Tensor
) -> tf.Tensor:
    """The same numbers, but the one of the flip is odd in every second epoch: at random which, for each example."""
    if not data.alternate_flip:
        return bits
    first = random_bits(seed, tf.zeros_like(epoch), indices, 1)
    return tf.concat([bits[:, :2], first + epoch, bits[:, 3:]], axis=1)


def _mix(x: tf.Tensor) -> tf.Tensor:
    def xor_shift(value: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(
            value, tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64))
        )

    x = x + tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    x = xor_shift(x, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    x = xor_shift(x, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return xor_shift(x, 31)


def augment(data: Data, pictures: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Random crop and flip of uint8 [n, h, w, c], by one gather of pixels from the padded pictures."""
    if not data.padding and not data.flip:
        return pictures
    height, width, channels = pictures.shape[1:]
    pad = data.padding
    rows = tf.range(height, dtype=tf.int64)[None] + bits[:, 0:1] % (2 * pad + 1)
    columns = tf.range(width, dtype=tf.int64)[None]
    if data.flip:
        columns = tf.where(bits[:, 2:3] % 2 == 1, width - 1 - columns, columns)
    columns += bits[:, 1:2] % (2 * pad + 1)
    padded = tf.pad(pictures, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
    tall, wide = height + 2 * pad, width + 2 * pad
    first = tf.range(tf.shape(pictures, tf.int64)[0])[:, None, None] * tall
    pixels = (first + rows[:, :, None]) * wide + columns[:, None, :]
    return tf.gather(tf.reshape(padded, [-1, channels]), pixels)


def scale(data: Data, pictures: tf.Tensor) -> tf.Tensor:
    """Pictures of values 0 to 255 to the float32 range that the experiment asks for."""
    x = tf.cast(pictures, tf.float32)
    if data.scaling == "standardise":
        return tf.image.per_image_standardization(x)
    if data.scaling == "unit":
        return x / 128.0 - 1.0
    _, height, width, channels = pictures.shape
    # by whole rows: with three channels as the inner dimension, TensorFlow's broadcasting takes a multiple of the time
    rows = tf.reshape(x, [-1, width * channels]) - tf.tile(
        tf.constant(data.mean[:channels], tf.float32), [width]
    )
    if data.scaling == "mean_std":
        rows /= tf.tile(tf.constant(data.std[:channels], tf.float32), [width])
    return tf.reshape(rows, [-1, height, width, channels])


def resize(data: Data, pictures: tf.Tensor) -> tf.Tensor:
    """Pictures of one size to the experiment's: the short side, then the middle of the long one."""
    size, (height, width) = data.image_size, pictures.shape[1:3]
    if not size or (height, width) == (size, size):
        return pictures
    tall, wide = max(size, round(height * size / width)), max(size, round(width * size / height))
    resized = tf.image.resize(pictures, [tall, wide], antialias=True)
    top, left = (tall - size) // 2, (wide - size) // 2
    return resized[:, top : top + size, left : left + size]


def cutout(data: Data, x: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Blank a square around a random pixel; it may stick out over the edge."""
    if not data.cutout:
        return x

    def inside(centre: tf.Tensor, length: int) -> tf.Tensor:
        start = centre % length - data.cutout // 2
        place = tf.range(length, dtype=tf.int64)[None]
        return (place >= start) & (place < start + data.cutout)

    blank = (
        inside(bits[:, 3:4], x.shape[1])[:, :, None] & inside(bits[:, 4:5], x.shape[2])[:, None, :]
    )
    return tf.where(blank[..., None], 0.0, x)


def mixup(data: Data, x: tf.Tensor, targets: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Blend each example with the one opposite in its slice; `key` is int64 [2] of (step, replica) mixed with the seed."""
    if not data.mixup:
        return x, targets
    gammas = tf.random.stateless_gamma([2, tf.shape(x)[0]], seed=key, alpha=data.mixup)
    share = tf.maximum(gammas[0], 1e-30) / tf.maximum(gammas[0] + gammas[1], 1e-30)
    wide = share[:, None, None, None]
    return wide * x + (1 - wide) * x[::-1], share[:, None] * targets + (
        1 - share[:, None]
    ) * targets[::-1]
