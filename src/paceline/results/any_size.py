"""Images of any size -> a model's input, in operations that every runtime has.

It repeats `formats.encoded.prepare` from the description that an export contains
(`describe_preprocessing`). Resizing is two products with matrices, which ONNX can express.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.experiment.fields import Json

if TYPE_CHECKING:
    import tensorflow as tf


def prepare_pixels(steps: Json, images: tf.Tensor) -> tf.Tensor:
    """Return uint8 [n, height, width, 3] as float32 [n, *size], not scaled yet."""
    import tensorflow as tf

    (part, whole), (tall, wide) = steps["crop"], steps["resize"]
    height, width = tf.shape(images)[1], tf.shape(images)[2]
    rows = tf.minimum(height, tf.maximum(1, (2 * width * tall + wide) // (2 * wide)))
    columns = tf.minimum(width, tf.maximum(1, (2 * height * wide + tall) // (2 * tall)))
    rows, columns = (tf.maximum(1, (2 * part * n + whole) // (2 * whole)) for n in (rows, columns))
    top, left = (height - rows) // 2, (width - columns) // 2
    box = tf.cast(images[:, top : top + rows, left : left + columns], tf.float32)
    pixels = _resize(box, rows, columns, tall, wide)
    if steps["round"]:
        pixels = tf.round(pixels)
    if steps["grey"]:
        pixels = tf.round(tf.reduce_sum(pixels * steps["grey"], -1, keepdims=True))
    if again := steps["resize_again"]:
        pixels = _resize(pixels, tf.constant(tall), tf.constant(wide), *again)
        tall, wide = again
    if steps["window"]:
        top, left, rows, columns = steps["window"]
        pad = max(0, -top, -left, rows + top - tall, columns + left - wide)
        pixels = tf.pad(pixels, [[0, 0], [pad, pad], [pad, pad], [0, 0]], steps["padding"])
        pixels = pixels[:, top + pad : top + pad + rows, left + pad : left + pad + columns]
    return pixels


def _resize(
    images: tf.Tensor, height: tf.Tensor, width: tf.Tensor, tall: int, wide: int
) -> tf.Tensor:
    import tensorflow as tf

    planes = tf.transpose(images, [0, 3, 1, 2])
    planes = tf.matmul(_weights(height, tall), planes)
    planes = tf.matmul(planes, tf.transpose(_weights(width, wide)))
    channels = images.shape[3]
    return tf.ensure_shape(tf.transpose(planes, [0, 2, 3, 1]), [None, tall, wide, channels])


def _weights(size: tf.Tensor, target: int) -> tf.Tensor:
    """Return the matrix [target, size] of the triangle filter, whose rows have the sum 1."""
    import tensorflow as tf

    ratio = tf.cast(size, tf.float32) / target
    centers = (tf.range(target, dtype=tf.float32) + 0.5) * ratio
    places = tf.cast(tf.range(size), tf.float32) + 0.5
    distance = tf.abs(places[None] - centers[:, None]) / tf.maximum(ratio, 1.0)
    weights = tf.maximum(0.0, 1.0 - distance)
    return weights / tf.reduce_sum(weights, 1, keepdims=True)
