"""The kernels as TensorFlow functions with gradients: convolutions, batch normalization,
max-pooling, z sigmoid(alpha z), and pairs of them that are faster together.

`load` brings the operations into this process. Call it before a graph that contains them is built,
read or run.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from paceline.errors import UserError
from paceline.kernels.library import find_library, why_unavailable


@functools.cache
def load() -> Any:
    """Load the library into TensorFlow, once per process; return the module of its operations."""
    reason, library = why_unavailable(), find_library()
    if reason or library is None:  # without AVX2 the process would die at the first operation
        raise UserError(f"kernels is own, but {reason}; or give --kernels tensorflow")
    try:
        return tf.load_op_library(str(library))
    except (tf.errors.NotFoundError, OSError) as error:
        raise UserError(
            f"the kernels in {library} cannot be loaded ({str(error).splitlines()[0]}); "
            "remove the file and run python -m paceline.kernels, or give --kernels tensorflow"
        ) from error


def conv3x3(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Return the 3x3 convolution with stride 1 and SAME padding; channels are multiples of 8."""
    return load().paceline_conv3x3(x, kernel, num_moments=0, forks=0, epsilon=0.0).y


def conv(x: tf.Tensor, kernel: tf.Tensor, stride: int, padding: str = "SAME") -> tf.Tensor:
    """Return a convolution of any kernel size and stride; output channels are a multiple of 8."""
    return _convolve(x, kernel, stride, padding, num_moments=0, forks=0, epsilon=0.0).y


def conv_moments(
    x: tf.Tensor, kernel: tf.Tensor, stride: int, epsilon: float, fork: bool, padding: str = "SAME"
) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """Return a convolution, its moments for `batch_norm`, and x itself.

    With `fork`, other users of x should take it from here: then one kernel adds the gradients.
    """
    extras = {"num_moments": 3, "forks": int(fork), "epsilon": epsilon}
    found = _convolve(x, kernel, stride, padding, **extras)
    return found.y, found.moments, found.through[0] if fork else x


def _convolve(x: tf.Tensor, kernel: tf.Tensor, stride: int, padding: str, **extras: float) -> Any:
    kind = (*kernel.shape[:2], stride, padding)
    if kind == (3, 3, 1, "SAME") and kernel.shape[2] % 8 == 0:
        return load().paceline_conv3x3(x, kernel, **extras)
    return load().paceline_conv(x, kernel, stride=stride, padding=padding, **extras)


def batch_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    residual: list[tf.Tensor],
    epsilon: float,
    slope: float,
    moments: list[tf.Tensor] | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return act(norm(x) [+ residual]), and the mean and unbiased variance of the batch.

    `slope` is the activation's slope below zero: 0 for ReLU, 1 for none. `moments` are from
    `conv_moments`, with the same epsilon.
    """
    found = load().paceline_batch_norm(
        x, gamma, beta, residual, moments or [], epsilon=epsilon, slope=slope
    )
    return found.y, found.mean, found.variance


def batch_norm_inference(
    x: tf.Tensor, norm: list[tf.Tensor], residual: list[tf.Tensor], epsilon: float, slope: float
) -> tf.Tensor:
    """Return act(norm(x) [+ residual]); `norm` is gamma, beta, mean and variance."""
    return load().paceline_batch_norm_inference(x, *norm, residual, epsilon=epsilon, slope=slope)


def conv_norm_inference(
    x: tf.Tensor,
    kernel: tf.Tensor,
    stride: int,
    norm: list[tf.Tensor],
    residual: list[tf.Tensor],
    epsilon: float,
    slope: float,
    padding: str = "SAME",
) -> tf.Tensor:
    """Return act(norm(conv(x)) [+ residual]); `norm` is gamma, beta, mean and variance."""
    return load().paceline_conv_norm_inference(
        x, kernel, *norm, residual, stride=stride, padding=padding, epsilon=epsilon, slope=slope
    )


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


# The gradient of a norm contains what x does through its moments: they need none of their own.
@tf.RegisterGradient("PacelineConv3x3")
def _conv3x3_gradient(op: tf.Operation, dy: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
    x, kernel = op.inputs
    other = others[op.get_attr("num_moments") :]
    return [
        load().paceline_conv3x3_input_gradient(dy, kernel, list(other)),
        load().paceline_conv3x3_filter_gradient(x, dy),
    ]


@tf.RegisterGradient("PacelineConv")
def _conv_gradient(op: tf.Operation, dy: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
    x, kernel = op.inputs
    stride, padding = op.get_attr("stride"), op.get_attr("padding").decode()
    other, given = others[op.get_attr("num_moments") :], {"stride": stride, "padding": padding}
    if x.shape[-1] % 8 == 0:
        dx = load().paceline_conv_input_gradient(dy, kernel, x, list(other), **given)
    else:  # images themselves: their gradient is rarely asked for, and then TensorFlow removes this
        dx = tf.nn.conv2d_transpose(dy, kernel, tf.shape(x), stride, padding)
        dx = tf.add_n([dx, *other])
    return [dx, load().paceline_conv_filter_gradient(x, dy, kernel, **given)]


@tf.RegisterGradient("PacelineBatchNorm")
def _batch_norm_gradient(op: tf.Operation, dy: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor | None]:
    residuals, num_moments = op.get_attr("n"), op.get_attr("num_moments")
    x, gamma, beta = op.inputs[:3]
    y, mean, scale, _ = op.outputs
    found = load().paceline_batch_norm_gradient(
        dy, x, gamma, beta, mean, scale, [y] * residuals, slope=op.get_attr("slope")
    )
    return [found.dx, found.dgamma, found.dbeta, *found.dresidual, *([None] * num_moments)]


@tf.RegisterGradient("PacelineBatchNormInference")
def _inference_gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Use TensorFlow's operations: frozen layers and saliency maps need no speed."""
    x, gamma, _, mean, variance, *residual = op.inputs
    slope, scale = op.get_attr("slope"), tf.math.rsqrt(variance + op.get_attr("epsilon"))
    dz = tf.where(op.outputs[0] > 0, dy, slope * dy)
    axes = list(range(x.shape.rank - 1))
    dgamma = tf.reduce_sum(dz * (x - mean) * scale, axes)
    dbeta = tf.reduce_sum(dz, axes)
    dmean = -dbeta * gamma * scale
    dvariance = -0.5 * dgamma * gamma * scale * scale
    return [dz * gamma * scale, dgamma, dbeta, dmean, dvariance, *([dz] * len(residual))]


@tf.RegisterGradient("PacelineConvNormInference")
def _conv_norm_gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Compute the convolution again: only saliency maps need this."""
    x, kernel, gamma, beta, mean, variance, *residual = op.inputs
    with tf.GradientTape() as tape:
        tape.watch(list(op.inputs))
        y = conv(x, kernel, op.get_attr("stride"), op.get_attr("padding").decode())
        epsilon, slope = op.get_attr("epsilon"), op.get_attr("slope")
        y = batch_norm_inference(y, [gamma, beta, mean, variance], residual, epsilon, slope)
    return tape.gradient(y, list(op.inputs), dy)


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
