"""Max-pooling, and z sigmoid(alpha z) after a bias or batch normalisation, as TensorFlow functions
with gradients.

They are in the library that `kernels.ops` loads.
"""

from __future__ import annotations

import tensorflow as tf

from paceline.kernels.ops import load


def max_pool(x: tf.Tensor) -> tf.Tensor:
    """Return the maximum of 2x2 windows at distance 2; channels are a multiple of 8."""
    return load().paceline_max_pool(x)


def swish(x: tf.Tensor, factor: tf.Tensor, offset: tf.Tensor, alpha: float) -> tf.Tensor:
    """Return z sigmoid(alpha z) of z = factor x + offset, with one of each for each channel."""
    return load().paceline_swish(x, factor, offset, alpha=alpha)


def norm_swish(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, alpha: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return z sigmoid(alpha z) of z = norm(x), and the mean and unbiased variance of the batch."""
    y, mean, variance, _ = load().paceline_norm_swish(x, gamma, beta, epsilon=epsilon, alpha=alpha)
    return y, mean, variance


@tf.RegisterGradient("PacelineMaxPool")
def _max_pool_gradient(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
    return load().paceline_max_pool_gradient(op.inputs[0], dy)


@tf.RegisterGradient("PacelineSwish")
def _swish_gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor]:
    return list(load().paceline_swish_gradient(dy, *op.inputs, alpha=op.get_attr("alpha")))


@tf.RegisterGradient("PacelineNormSwish")
def _norm_swish_gradient(op: tf.Operation, dy: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
    _, mean, _, scale = op.outputs
    alpha = op.get_attr("alpha")
    return list(load().paceline_norm_swish_gradient(dy, *op.inputs, mean, scale, alpha=alpha))
