"""Scales the values of images, 0 to 255, to the range of the experiment."""

from __future__ import annotations

import tensorflow as tf

from paceline.experiment.experiment import Scaling


def scale(scaling: Scaling, images: tf.Tensor) -> tf.Tensor:
    """Scale values of 0 to 255 to the float32 range of the experiment."""
    assert scaling.method != "application", "`models.applications` puts a scaling in its place"
    x = tf.cast(images, tf.float32)
    if scaling.method == "standardize":
        return tf.image.per_image_standardization(x)
    if scaling.method == "unit":
        return x / 128.0 - 1.0
    _, height, width, channels = images.shape
    # by rows: with three channels as the inner dimension, TensorFlow's broadcasting takes a
    # multiple of the time
    rows = tf.reshape(x, [-1, width * channels]) - tf.tile(
        tf.constant(scaling.mean[:channels], tf.float32), [width]
    )
    if scaling.method == "mean_std":
        rows /= tf.tile(tf.constant(scaling.std[:channels], tf.float32), [width])
    scaled = tf.reshape(rows, [-1, height, width, channels])
    return tf.reverse(scaled, [-1]) if scaling.method == "bgr_mean" else scaled
