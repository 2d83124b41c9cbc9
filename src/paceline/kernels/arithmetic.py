"""Float32 arithmetic with the same bits on every CPU, in functions that are written with operators.

TensorFlow's graph optimizer rewrites its own operations: it reorders sums, and multiplies by an
estimated reciprocal instead of dividing. Its threads turn tiny numbers to zero. It leaves the
operations of the kernels alone, and these round as IEEE 754 says, in the order that
docs/arithmetic.md describes.

    plain(number(gradient) + decay * number(params))

Where the kernels are not available, or there is a GPU, `number` returns the tensor itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from paceline.kernels import ops
from paceline.kernels.library import why_unavailable

Operand = Any
"""A `Number`, a tensor, an array or a number."""
_portable = ContextVar("portable", default=False)


def is_fixed() -> bool:
    """Return whether this process computes with the operations of the kernels."""
    if _portable.get() or not (ops.is_loaded() or not why_unavailable()):
        return False
    return not tf.config.list_logical_devices("GPU")


def portable() -> AbstractContextManager[None]:
    """Within it, graphs are built of TensorFlow's operations, for programs without the kernels."""
    return ops.within(_portable, True)


def _operator(kind: str, is_right: bool = False) -> Callable[[Number, Operand], Number]:
    """Return a method of `Number`, whose object is the left or the right operand."""
    if is_right:
        return lambda self, other: _binary(kind, other, self)
    return lambda self, other: _binary(kind, self, other)


@dataclass(frozen=True)
class Number:
    """A float32 tensor. Operands may be tensors, arrays and numbers; shapes are broadcast."""

    tensor: tf.Tensor
    __array_ufunc__ = None  # a NumPy number leaves its operators to this class

    __add__, __radd__ = _operator("add"), _operator("add", is_right=True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", is_right=True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", is_right=True)
    __truediv__, __rtruediv__ = _operator("divide"), _operator("divide", is_right=True)


def _binary(kind: str, a: Operand, b: Operand) -> Number:
    a, b = (tf.convert_to_tensor(ops.widened(plain(each)), tf.float32) for each in (a, b))
    return Number(ops.load().paceline_binary(a, b, kind=kind))


def number(tensor: Operand) -> Operand:
    """Return what computes with fixed bits, if this process can."""
    return Number(tensor) if is_fixed() and not isinstance(tensor, Number) else tensor


def plain(value: Operand) -> Operand:
    """Return the tensor of a `number`; anything else as it is."""
    return value.tensor if isinstance(value, Number) else value


def square_root(x: Operand) -> Operand:
    if isinstance(x, Number):
        return Number(ops.load().paceline_unary(x.tensor, kind="square_root"))
    return tf.sqrt(x)


def logarithm(x: tf.Tensor) -> tf.Tensor:
    """Return the natural logarithm; it has a gradient."""
    return ops.load().paceline_unary(x, kind="logarithm") if is_fixed() else tf.math.log(x)


def exponential(x: tf.Tensor) -> tf.Tensor:
    return ops.load().paceline_unary(x, kind="exponential") if is_fixed() else tf.exp(x)


def total(x: tf.Tensor, axis: int | None = None) -> tf.Tensor:
    """Return the sum over an axis, or over all numbers. It has a gradient, as `mean`."""
    return _reduce(x, axis, False) if is_fixed() else tf.reduce_sum(x, axis)


def mean(x: tf.Tensor, axis: int | None = None) -> tf.Tensor:
    return _reduce(x, axis, True) if is_fixed() else tf.reduce_mean(x, axis)


def _reduce(x: tf.Tensor, axis: int | None, is_mean: bool) -> tf.Tensor:
    x = ops.widened(x)
    if axis is None:
        rows = tf.reshape(x, [1, -1, 1])
        return tf.reshape(ops.load().paceline_sum(rows, mean=is_mean), [])
    axis, shape = axis % x.shape.rank, tf.shape(x)
    outer, inner = shape[:axis], shape[axis + 1 :]
    rows = tf.reshape(x, [tf.reduce_prod(outer), shape[axis], tf.reduce_prod(inner)])
    sums = tf.reshape(ops.load().paceline_sum(rows, mean=is_mean), tf.concat([outer, inner], 0))
    return tf.ensure_shape(sums, x.shape[:axis] + x.shape[axis + 1 :])


def product(a: tf.Tensor, b: tf.Tensor, transpose_a: bool = False) -> tf.Tensor:
    """Return the product of two matrices. Without `transpose_a` it has gradients."""
    if not is_fixed():
        return tf.matmul(a, b, transpose_a=transpose_a)
    columns, b = b.shape[1], ops.filled(b)
    if transpose_a:  # as the gradient of a filter
        kernel, x, dy = tf.zeros([1, 1, a.shape[1], b.shape[1]]), a[:, None, None], b[:, None, None]
        given = {"stride": 1, "padding": "SAME"}
        return ops.load().paceline_conv_filter_gradient(x, dy, kernel, **given)[0, 0, :, :columns]
    y = ops.conv(ops.filled(a)[:, None, None], ops.filled(b, 0)[None, None], 1, wide=True)
    return ops.cut(y[:, 0, 0], columns)


def positive_part(x: tf.Tensor) -> tf.Tensor:
    """Return x where it is positive, else 0; it has a gradient."""
    if is_fixed():
        return _binary("where_positive", x, x).tensor
    return tf.nn.relu(x)


def resized(images: tf.Tensor, size: Operand, antialias: bool = True) -> tf.Tensor:
    """Return images [n, h, w, c], or one, of a different size, float32: bilinear, with a wider
    filter where they become smaller."""
    if is_fixed():
        many = images if images.shape.rank == 4 else images[None]
        found = ops.load().paceline_resize(many, tf.cast(size, tf.int32), antialias=antialias)
        return found if images.shape.rank == 4 else found[0]
    if antialias:
        return tf.image.resize(images, size, antialias=True)
    return tf.compat.v1.image.resize_bilinear(images, size, half_pixel_centers=True)


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return the loss of each example; targets sum to one."""
    if is_fixed():
        return ops.load().paceline_cross_entropy(logits, targets).losses
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


@tf.RegisterGradient("PacelineBinary")
def _binary_gradient(op: tf.Operation, dy: tf.Tensor) -> list[tf.Tensor | None]:
    a, b = op.inputs
    if op.get_attr("kind") == b"where_positive":  # a is b
        return [None, ops.load().paceline_binary(a, dy, kind="where_positive")]
    kind, dy = op.get_attr("kind").decode(), Number(dy)
    by_a, by_b = {
        "add": lambda: (dy, dy),
        "subtract": lambda: (dy, 0 - dy),
        "multiply": lambda: (dy * b, dy * a),
        "divide": lambda: (dy / b, 0 - dy * op.outputs[0] / b),
    }[kind]()
    return [_summed_to(by_a.tensor, a.shape), _summed_to(by_b.tensor, b.shape)]


def _summed_to(gradient: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Return the gradient of an operand from that of what it was broadcast to."""
    while gradient.shape.rank > shape.rank:
        gradient = total(gradient, 0)
    for axis, length in enumerate(shape):
        if length == 1 and gradient.shape[axis] != 1:
            gradient = tf.expand_dims(total(gradient, axis), axis)
    return gradient


@tf.RegisterGradient("PacelineUnary")
def _unary_gradient(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
    kind, x, y = op.get_attr("kind").decode(), op.inputs[0], op.outputs[0]
    if kind == "exponential":
        return (Number(dy) * y).tensor
    factor, divisor = (0.5, y) if kind == "square_root" else (1.0, x)
    return (Number(dy) * factor / divisor).tensor


@tf.RegisterGradient("PacelineSum")
def _sum_gradient(op: tf.Operation, dy: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(op.inputs[0])
    if op.get_attr("mean"):
        dy = (Number(dy) * (Number(tf.constant(1.0)) / tf.cast(shape[1], tf.float32))).tensor
    return tf.broadcast_to(dy[:, None], shape)


@tf.RegisterGradient("PacelineCrossEntropy")
def _cross_entropy_gradient(
    op: tf.Operation, dy: tf.Tensor, _: tf.Tensor
) -> list[tf.Tensor | None]:
    return [(Number(op.outputs[1]) * dy[:, None]).tensor, None]
