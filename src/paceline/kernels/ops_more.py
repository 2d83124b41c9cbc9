"""Kernels for some trainings only: norms with fixed statistics, and z sigmoid(alpha z)."""

import tensorflow as tf

from paceline.kernels import ops
from paceline.kernels.arithmetic import Number, square_root, total
from paceline.kernels.ops import cut, filled, load, stored, widened


def batch_norm_inference(
    x: tf.Tensor, norm: list[tf.Tensor], residual: list[tf.Tensor], epsilon: float, slope: float
) -> tf.Tensor:
    """Return act(norm(x) [+ residual]); `norm` is gamma, beta, mean and variance."""
    channels = x.shape[-1]
    x, *residual = (filled(stored(each)) for each in (x, *residual))
    norm = list(map(filled, norm))
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
    channels, (x, kernel) = kernel.shape[3], ops.filled_operands(x, kernel)
    norm, residual = list(map(filled, norm)), [filled(stored(each)) for each in residual]
    given = {"stride": stride, "padding": padding, "epsilon": epsilon, "slope": slope}
    y = load().paceline_conv_norm_inference(x, kernel, *norm, residual, **given)
    return cut(y, channels)


def swish(x: tf.Tensor, factor: tf.Tensor, offset: tf.Tensor, alpha: float) -> tf.Tensor:
    """Return z sigmoid(alpha z) of z = factor x + offset, with one of each for each channel."""
    operands = (filled(each) for each in (widened(x), factor, offset))
    return cut(load().paceline_swish(*operands, alpha=alpha), x.shape[-1])


def norm_swish(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, alpha: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return z sigmoid(alpha z) of z = norm(x), and the mean and unbiased variance of the batch."""
    operands = (filled(each) for each in (widened(x), gamma, beta))
    found = load().paceline_norm_swish(*operands, epsilon=epsilon, alpha=alpha)
    y, mean, variance = (cut(each, gamma.shape[0]) for each in found[:3])
    return y, mean, variance


@tf.RegisterGradient("PacelineBatchNormInference")
def _inference_gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Frozen layers and saliency maps need this, and no speed."""
    images, gamma, _, mean, variance, *residual = op.inputs
    x, y, dy = map(widened, (images, *op.outputs, dy))
    slope, channels = op.get_attr("slope"), x.shape[-1]
    scale = 1.0 / square_root(Number(variance) + op.get_attr("epsilon"))
    dz = Number(tf.where(y > 0, dy, (Number(dy) * slope).tensor))

    def by_channel(values: Number) -> Number:
        return Number(total(tf.reshape(values.tensor, [-1, channels]), 0))

    dgamma, dbeta = by_channel(dz * (Number(x) - mean) * scale), by_channel(dz)
    dmean, dvariance = 0.0 - dbeta * gamma * scale, -0.5 * dgamma * gamma * scale * scale
    found = (dz * gamma * scale, dgamma, dbeta, dmean, dvariance, *([dz] * len(residual)))
    return [stored(each.tensor, of.dtype) for each, of in zip(found, op.inputs, strict=True)]


@tf.RegisterGradient("PacelineConvNormInference")
def _conv_norm_gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor | None]:
    """Compute the convolution again: only saliency maps need this."""
    x, kernel, gamma, beta, mean, variance, *residual = op.inputs
    with tf.GradientTape() as tape, ops.within(ops.in_bfloat16, x.dtype == tf.bfloat16):
        tape.watch(list(op.inputs))
        y = ops.convolve(x, kernel, op.get_attr("stride"), op.get_attr("padding").decode()).y
        epsilon, slope = op.get_attr("epsilon"), op.get_attr("slope")
        y = batch_norm_inference(y, [gamma, beta, mean, variance], residual, epsilon, slope)
    return tape.gradient(y, list(op.inputs), dy)


@tf.RegisterGradient("PacelineSwish")
def _swish_gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor]:
    return list(load().paceline_swish_gradient(dy, *op.inputs, alpha=op.get_attr("alpha")))


@tf.RegisterGradient("PacelineNormSwish")
def _norm_swish_gradient(op: tf.Operation, dy: tf.Tensor, *_: tf.Tensor) -> list[tf.Tensor]:
    _, mean, _, scale = op.outputs
    alpha = op.get_attr("alpha")
    return list(load().paceline_norm_swish_gradient(dy, *op.inputs, mean, scale, alpha=alpha))
