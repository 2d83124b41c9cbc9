"""The kernels as TensorFlow functions with gradients: convolutions, batch normalization,
max-pooling, and pairs of them that are faster together. `ops_more` has what not every training
needs. `load` brings the operations into this process. Call it before a graph that contains them is
built, read or run."""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from paceline.errors import UserError, first_line
from paceline.kernels.library import find_library, uses_avx512, uses_avx512_bf16, why_unavailable

in_bfloat16 = ContextVar("in_bfloat16", default=False)
"""Whether convolutions, norms and what is between them are bfloat16."""


@contextmanager
def within(variable: ContextVar[bool], value: bool) -> Iterator[None]:
    """Give a variable a value for a while."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@functools.cache
def load() -> Any:
    """Load the library into TensorFlow, once per process; return the module of its operations."""
    reason, library = why_unavailable(), find_library()
    if reason or library is None:  # without AVX2 the process would die at the first operation
        raise UserError(f"kernels is own, but {reason}; or pass --kernels tensorflow")
    try:
        module = tf.load_op_library(str(library))
        ctypes.CDLL(str(library)).paceline_use_avx512(uses_avx512(), uses_avx512_bf16())
        return module
    except (tf.errors.NotFoundError, OSError) as error:
        raise UserError(
            f"the kernels in {library} cannot be loaded ({first_line(error)}); "
            "remove the file and run python -m paceline.kernels, or pass --kernels tensorflow"
        ) from error


def is_loaded() -> bool:
    """Return whether this process has the library. Then nothing can take it away."""
    return load.cache_info().currsize > 0


def stored(x: tf.Tensor, kind: tf.DType | None = None) -> tf.Tensor:
    """Return images in this type, by default the one that they have between layers."""
    kind = kind or (tf.bfloat16 if in_bfloat16.get() else tf.float32)
    return x if x.dtype == kind else load().paceline_convert(x, U=kind)


def widened(x: Any) -> Any:
    return stored(x, tf.float32) if getattr(x, "dtype", None) == tf.bfloat16 else x


def filled(x: tf.Tensor, *axes: int, unit: int = 8) -> tf.Tensor:
    """Return x with zeros at the end of these axes, by default the last, up to multiples of 8."""
    rank = x.shape.rank
    missing = {axis % rank: -x.shape[axis] % unit for axis in axes or (-1,)}
    pads = [[0, missing.get(axis, 0)] for axis in range(rank)]
    return tf.pad(x, pads) if any(missing.values()) else x


def cut(x: tf.Tensor, channels: int) -> tf.Tensor:
    """Return the first channels: without those that were filled in."""
    return x if x.shape[-1] == channels else x[..., :channels]


def filled_operands(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Images, of up to 3 channels, stay as they are; pairs of bfloat16 need an even number."""
    unit = 8 if kernel.shape[2] > 3 else 2 if in_bfloat16.get() else 1
    return filled(stored(x), unit=unit), filled(filled(kernel, 2, unit=unit))


def conv(
    x: tf.Tensor, kernel: tf.Tensor, stride: int, padding: str = "SAME", wide: bool = False
) -> tf.Tensor:
    """Return a convolution of any kernel size and stride; `wide` asks for float32."""
    y = convolve(*filled_operands(x, kernel), stride, padding, wide=wide).y
    return cut(y, kernel.shape[3])


def conv_moments(
    x: tf.Tensor, kernel: tf.Tensor, stride: int, epsilon: float, fork: bool, padding: str = "SAME"
) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    """Return a convolution, its moments for `batch_norm`, both filled up to a multiple of 8
    channels, and x itself: with `fork`, its other users take it here, and one kernel adds the
    gradients."""
    extras = {"num_moments": 3, "forks": int(fork), "epsilon": epsilon}
    found = convolve(*filled_operands(x, kernel), stride, padding, **extras)
    return found.y, found.moments, found.through[0] if fork else x


def convolve(x: tf.Tensor, kernel: tf.Tensor, stride: int, padding: str, **extras: Any) -> Any:
    extras = {"num_moments": 0, "forks": 0, "epsilon": 0.0, **extras}
    wide = extras.pop("wide", False)
    if (*kernel.shape[:2], stride, padding) == (3, 3, 1, "SAME") and kernel.shape[2] % 8 == 0:
        return load().paceline_conv3x3(x, kernel, **extras)
    given = {"stride": stride, "padding": padding, "U": tf.float32 if wide else x.dtype}
    return load().paceline_conv(x, kernel, **given, **extras)


def batch_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    residual: list[tf.Tensor],
    epsilon: float,
    slope: float,
    moments: list[tf.Tensor] | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return act(norm(x) [+ residual]), and the mean and unbiased variance of the batch. `slope` is
    the activation's below zero: 0 for ReLU, 1 for none. `moments` are from `conv_moments`, with the
    same epsilon."""
    channels = gamma.shape[0]
    x, *residual = (filled(stored(each)) for each in (x, *residual))
    gamma, beta = filled(gamma), filled(beta)
    tensors, given = (x, gamma, beta, residual, moments or []), {"epsilon": epsilon, "slope": slope}
    found = load().paceline_batch_norm(*tensors, **given)
    return cut(found.y, channels), cut(found.mean, channels), cut(found.variance, channels)


def max_pool(x: tf.Tensor, size: int, stride: int, padding: str = "VALID") -> tf.Tensor:
    """Return the maximum of square windows."""
    found = load().paceline_max_pool(filled(x), size=size, stride=stride, padding=padding)
    return cut(found, x.shape[-1])


@tf.RegisterGradient("PacelineConvert")
def _convert_gradient(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
    return stored(dy, op.inputs[0].dtype)


# The gradient of a norm contains what x does through its moments: they need none of their own.
@tf.RegisterGradient("PacelineConv3x3")
def _conv3x3_gradient(op: tf.Operation, dy: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
    x, kernel = op.inputs
    other = list(others[op.get_attr("num_moments") :])
    dx = load().paceline_conv3x3_input_gradient(dy, kernel, other)
    return [dx, load().paceline_conv3x3_filter_gradient(x, dy)]


@tf.RegisterGradient("PacelineConv")
def _conv_gradient(op: tf.Operation, dy: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor]:
    x, kernel = op.inputs
    given = {name: op.get_attr(name) for name in ("stride", "padding")}
    dy, more = stored(dy, x.dtype), [filled(each) for each in others[op.get_attr("num_moments") :]]
    of_x = filled(kernel, 2), filled(x), more  # of images themselves, it is rarely asked for
    dx = cut(load().paceline_conv_input_gradient(dy, *of_x, **given), x.shape[-1])
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


@tf.RegisterGradient("PacelineMaxPool")
def _max_pool_gradient(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
    given = {name: op.get_attr(name) for name in ("size", "stride", "padding")}
    return load().paceline_max_pool_gradient(op.inputs[0], dy, **given)
