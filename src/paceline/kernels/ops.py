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


def filled(x: tf.Tensor, *axes: int) -> tf.Tensor:
    """Return x with zeros at the end of these axes, by default the last, up to multiples of 8."""
    rank = x.shape.rank
    missing = {axis % rank: -x.shape[axis] % 8 for axis in axes or (-1,)}
    pads = [[0, missing.get(axis, 0)] for axis in range(rank)]
    return tf.pad(x, pads) if any(missing.values()) else x


def cut(x: tf.Tensor, channels: int) -> tf.Tensor:
    """Return the first channels: without those that were filled in."""
    return x if x.shape[-1] == channels else x[..., :channels]


def _filled_operands(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Images, of up to 3 channels, stay as they are."""
    if kernel.shape[2] > 3:
        x, kernel = filled(x), filled(kernel, 2)
    return x, filled(kernel)


def conv(x: tf.Tensor, kernel: tf.Tensor, stride: int, padding: str = "SAME") -> tf.Tensor:
    """Return a convolution of any kernel size and stride."""
    operands = _filled_operands(x, kernel)
    y = _convolve(*operands, stride, padding, num_moments=0, forks=0, epsilon=0.0).y
    return cut(y, kernel.shape[3])


def conv_moments(
    x: tf.Tensor, kernel: tf.Tensor, stride: int, epsilon: float, fork: bool, padding: str = "SAME"
) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """Return a convolution, its moments for `batch_norm`, and x itself.

    With `fork`, other users of x should take it from here: then one kernel adds the gradients. The
    convolution and its moments are filled up to a multiple of 8 channels, as `batch_norm` wants it.
    """
    extras = {"num_moments": 3, "forks": int(fork), "epsilon": epsilon}
    found = _convolve(*_filled_operands(x, kernel), stride, padding, **extras)
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
    channels = gamma.shape[0]
    x, gamma, beta, *residual = (filled(each) for each in (x, gamma, beta, *residual))
    found = load().paceline_batch_norm(
        x, gamma, beta, residual, moments or [], epsilon=epsilon, slope=slope
    )
    return cut(found.y, channels), cut(found.mean, channels), cut(found.variance, channels)


def batch_norm_inference(
    x: tf.Tensor, norm: list[tf.Tensor], residual: list[tf.Tensor], epsilon: float, slope: float
) -> tf.Tensor:
    """Return act(norm(x) [+ residual]); `norm` is gamma, beta, mean and variance."""
    channels = x.shape[-1]
    x, *norm, residual = filled(x), *map(filled, norm), [filled(each) for each in residual]
    y = load().paceline_batch_norm_inference(x, *norm, residual, epsilon=epsilon, slope=slope)
    return cut(y, channels)


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
    channels, (x, kernel) = kernel.shape[3], _filled_operands(x, kernel)
    norm, residual = [filled(each) for each in norm], [filled(each) for each in residual]
    y = load().paceline_conv_norm_inference(
        x, kernel, *norm, residual, stride=stride, padding=padding, epsilon=epsilon, slope=slope
    )
    return cut(y, channels)


def max_pool(x: tf.Tensor, size: int, stride: int, padding: str = "VALID") -> tf.Tensor:
    """Return the maximum of square windows."""
    found = load().paceline_max_pool(filled(x), size=size, stride=stride, padding=padding)
    return cut(found, x.shape[-1])


def swish(x: tf.Tensor, factor: tf.Tensor, offset: tf.Tensor, alpha: float) -> tf.Tensor:
    """Return z sigmoid(alpha z) of z = factor x + offset, with one of each for each channel."""
    operands = (filled(each) for each in (x, factor, offset))
    return cut(load().paceline_swish(*operands, alpha=alpha), x.shape[-1])


def norm_swish(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, alpha: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return z sigmoid(alpha z) of z = norm(x), and the mean and unbiased variance of the batch."""
    operands = (filled(each) for each in (x, gamma, beta))
    found = load().paceline_norm_swish(*operands, epsilon=epsilon, alpha=alpha)
    y, mean, variance = (cut(each, gamma.shape[0]) for each in found[:3])
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
    """Frozen layers and saliency maps need this, and no speed."""
    from paceline.kernels.arithmetic import Number, square_root, total

    x, gamma, _, mean, variance, *residual = op.inputs
    slope, channels = op.get_attr("slope"), x.shape[-1]
    scale = 1.0 / square_root(Number(variance) + op.get_attr("epsilon"))
    dz = Number(tf.where(op.outputs[0] > 0, dy, (Number(dy) * slope).tensor))

    def by_channel(values: Number) -> Number:
        return Number(total(tf.reshape(values.tensor, [-1, channels]), 0))

    dgamma, dbeta = by_channel(dz * (Number(x) - mean) * scale), by_channel(dz)
    dmean, dvariance = 0.0 - dbeta * gamma * scale, -0.5 * dgamma * gamma * scale * scale
    found = (dz * gamma * scale, dgamma, dbeta, dmean, dvariance, *([dz] * len(residual)))
    return [each.tensor for each in found]


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
    given = {name: op.get_attr(name) for name in ("size", "stride", "padding")}
    return load().paceline_max_pool_gradient(op.inputs[0], dy, **given)


@tf.RegisterGradient("PacelineSwish")
def _swish_gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor]:
    return list(load().paceline_swish_gradient(dy, *op.inputs, alpha=op.get_attr("alpha")))


@tf.RegisterGradient("PacelineNormSwish")
def _norm_swish_gradient(op: tf.Operation, dy: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
    _, mean, _, scale = op.outputs
    alpha = op.get_attr("alpha")
    return list(load().paceline_norm_swish_gradient(dy, *op.inputs, mean, scale, alpha=alpha))
