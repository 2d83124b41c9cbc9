"""Each operation of the kernels, bit for bit as docs/arithmetic.md says.

`reference/reference.py` computes the same with NumPy, which keeps numbers below the smallest normal
one. TensorFlow turns them to zero in the threads of its pools, but not where Python runs an
operation inline: the operations of the kernels must do neither more nor less in both.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from kernel_checks import needs_kernels
from paceline.kernels import arithmetic, ops, ops_more

sys.path.append(str(Path(__file__).parents[2] / "reference"))
import reference

pytestmark = needs_kernels

F, D = np.float32, np.float64
EPSILON = 1e-5
SCALES = {"normal": 0, "small products": -70, "denormal": -138}
"""Powers of two by which the numbers are multiplied: 2 ** -126 is the smallest normal one."""

Arrays = list[np.ndarray]


def numbers(seed: int, shape: tuple[int, ...], scale: int) -> np.ndarray:
    """Numbers of -4 to 4, times a power of two, from a generator of whole numbers."""
    whole = np.random.default_rng(seed).integers(-(2**22), 2**22, shape)
    return np.ldexp(F(whole) * F(2**-20), scale).astype(F)


class Case(NamedTuple):
    """An operation, the same in NumPy, and the shapes of their arguments."""

    own: Callable[..., tf.Tensor]
    numpy: Callable[..., np.ndarray | tuple[np.ndarray, Any]]
    """Returns the result, or also a function from its gradient to those of the arguments."""
    shapes: tuple[tuple[int, ...], ...]


def binary(kind: str) -> Callable[..., tf.Tensor]:
    return lambda a, b: ops.load().paceline_binary(a, b, kind=kind)


def logarithm(x: np.ndarray) -> np.ndarray:
    return np.vectorize(reference.logarithm, otypes=[D])(x.astype(D)).astype(F)


def all_lanes(x: np.ndarray) -> np.ndarray:
    """The sum of all numbers: eight sums in double, and then their sum."""
    filled = np.concatenate([x.ravel(), np.zeros(-x.size % 8, F)]).astype(D)
    return F(reference.row_sum(reference.row_sum(filled.reshape(-1, 8))[:, None])[0])


def norm(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, *residual: np.ndarray
) -> tuple[np.ndarray, Any]:
    y, _, gradients = reference.batch_norm(x, gamma, beta, EPSILON, *residual)
    return y, lambda dy: gradients(dy)[: 3 + len(residual)]


def fixed_norm(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> np.ndarray:
    factor = gamma * (1 / np.sqrt(variance.astype(D) + D(F(EPSILON)))).astype(F)
    return np.maximum(reference.fma(x, factor, beta - mean * factor), F(0))


def swish(x: np.ndarray, factor: np.ndarray, offset: np.ndarray) -> np.ndarray:
    z = reference.fma(x, factor, offset)
    return z * (F(1) / (F(1) + reference.exponential(-(F(1.702) * z))))


def resized(x: np.ndarray) -> np.ndarray:
    """To 5 x 5 pixels, from 7 x 7."""
    centers = (np.arange(5) + 0.5) * 7 / 5 - 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(7) - centers[:, None]) / 1.4)
    weights = (weights / weights.sum(1, keepdims=True)).astype(F)
    for axis in (1, 2):
        x = np.moveaxis(reference.product(weights, np.moveaxis(x, axis, -2)), -2, axis)
    return x


def rounded(own: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """The same, of numbers rounded to bfloat16."""

    def function(*arguments: tf.Tensor) -> tf.Tensor:
        with ops.within(ops.in_bfloat16, True):
            return ops.widened(own(*arguments))

    return function


def half_products(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, Any]:
    multiply, store = reference.half_product, reference.bfloat16
    return multiply(a, b), lambda dy: (store(multiply(dy, b.T)), multiply(a.T, dy))


def conv(stride: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return lambda x, w: ops.conv(x, w, stride), lambda x, w: reference.conv(x, w, stride)


def half_conv(stride: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def numpy(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, Any]:
        y, gradients = reference.conv(reference.bfloat16(x), w, stride, reference.bfloat16)
        return y, lambda dy: gradients(reference.bfloat16(dy))

    return rounded(lambda x, w: ops.conv(x, w, stride)), numpy


def half_norm(
    x: np.ndarray, g: np.ndarray, b: np.ndarray, *r: np.ndarray
) -> tuple[np.ndarray, Any]:
    x, *r = map(reference.bfloat16, (x, *r))
    y, _, gradients = reference.batch_norm(x, g, b, EPSILON, *(r or [None]), reference.bfloat16)
    return y, lambda dy: gradients(reference.bfloat16(dy))[: 3 + len(r)]


def half_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return reference.bfloat16(reference.bfloat16(a) + reference.bfloat16(b))


IMAGES, CHANNELS = (2, 24, 25, 8), (8,)  # more than a chunk of the sums of a norm
CASES = {
    "add": Case(binary("add"), np.add, ((9, 5), (5,))),
    "subtract": Case(binary("subtract"), np.subtract, ((9, 1), (9, 5))),
    "multiply": Case(binary("multiply"), np.multiply, ((9, 5), (9, 5))),
    "divide": Case(binary("divide"), np.divide, ((9, 5), (9, 5))),
    "where positive": Case(
        binary("where_positive"), lambda a, b: np.where(a > 0, b, F(0)), ((9, 5), (9, 5))
    ),
    "square root": Case(
        lambda x: arithmetic.square_root(arithmetic.number(tf.abs(x))).tensor,
        lambda x: np.sqrt(np.abs(x)),
        ((33,),),
    ),
    "exponential": Case(arithmetic.exponential, reference.exponential, ((33,),)),
    "logarithm": Case(
        lambda x: arithmetic.logarithm(tf.abs(x)), lambda x: logarithm(np.abs(x)), ((33,),)
    ),
    "total": Case(arithmetic.total, all_lanes, ((1003,),)),
    "mean": Case(
        lambda x: arithmetic.mean(x, 0),
        lambda x: (reference.row_sum(x) / len(x)).astype(F),
        ((37, 11),),
    ),
    "product": Case(
        arithmetic.product,
        lambda a, b: (
            reference.product(a, b),
            lambda dy: (reference.product(dy, b.T), reference.product(a.T, dy)),
        ),
        ((9, 19), (19, 10)),
    ),
    "Winograd": Case(*conv(1), ((2, 9, 7, 8), (3, 3, 8, 16))),
    "convolution": Case(*conv(2), ((2, 9, 7, 8), (3, 3, 8, 16))),
    "product of bfloat16": Case(rounded(arithmetic.product), half_products, ((9, 19), (19, 42))),
    "convolution of bfloat16": Case(*half_conv(2), ((2, 9, 7, 8), (3, 3, 8, 40))),
    "Winograd of bfloat16": Case(*half_conv(1), ((2, 9, 7, 8), (3, 3, 8, 16))),
    "batch norm of bfloat16": Case(
        rounded(lambda x, g, b: ops.batch_norm(x, g, b, [], EPSILON, 0.0)[0]),
        half_norm,
        (IMAGES, CHANNELS, CHANNELS),
    ),
    "batch norm and sum of bfloat16": Case(
        rounded(lambda x, g, b, r: ops.batch_norm(x, g, b, [r], EPSILON, 0.0)[0]),
        half_norm,
        (IMAGES, CHANNELS, CHANNELS, IMAGES),
    ),
    "sum of bfloat16": Case(
        rounded(lambda a, b: ops.load().paceline_add(ops.stored(a), ops.stored(b))),
        half_sum,
        ((9, 5), (9, 5)),
    ),
    "batch norm": Case(
        lambda x, g, b: ops.batch_norm(x, g, b, [], EPSILON, 0.0)[0],
        norm,
        (IMAGES, CHANNELS, CHANNELS),
    ),
    "batch norm and sum": Case(
        lambda x, g, b, r: ops.batch_norm(x, g, b, [r], EPSILON, 0.0)[0],
        norm,
        (IMAGES, CHANNELS, CHANNELS, IMAGES),
    ),
    "fixed norm": Case(
        lambda x, g, b, m, v: ops_more.batch_norm_inference(x, [g, b, m, v * v], [], EPSILON, 0.0),
        lambda x, g, b, m, v: fixed_norm(x, g, b, m, v * v),
        (IMAGES, *[CHANNELS] * 4),
    ),
    "swish": Case(
        lambda x, f, o: ops_more.swish(x, f, o, 1.702), swish, (IMAGES, CHANNELS, CHANNELS)
    ),
    "resize": Case(lambda x: arithmetic.resized(x, [5, 5]), resized, ((2, 7, 7, 3),)),
    "resize gray": Case(lambda x: arithmetic.resized(x, [5, 5]), resized, ((2, 7, 7, 1),)),
}


def compute(case: Case, arguments: Arrays, dy: np.ndarray | None, inline: bool) -> Arrays:
    """Return the result, and with `dy` the gradients of the arguments."""

    def function(*tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = case.own(*tensors)
        return [y] if dy is None else [y, *tape.gradient(y, tensors, tf.constant(dy))]

    function = function if inline else tf.function(function, autograph=False)
    return [each.numpy() for each in function(*map(tf.constant, arguments))]


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "graph"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", CASES)
def test_an_operation_has_the_bits_of_the_reference(name: str, scale: str, inline: bool) -> None:
    case, power = CASES[name], SCALES[scale]
    arguments = [numbers(k, shape, power) for k, shape in enumerate(case.shapes)]
    with np.errstate(all="ignore"):
        expected = case.numpy(*arguments)
        dy = None
        if isinstance(expected, tuple):
            y, gradients = expected
            dy = numbers(99, y.shape, power)
            expected = [y, *gradients(dy)]
    expected = expected if isinstance(expected, list) else [expected]
    found = compute(case, arguments, dy, inline)
    for k, (mine, right) in enumerate(zip(found, expected, strict=True)):
        assert right.dtype == F
        assert np.array_equal(mine, right, equal_nan=True), (k, mine.ravel()[:4], right.ravel()[:4])


def test_a_sum_in_double_keeps_its_order() -> None:
    """Numbers of very different sizes that cancel: the roundings are left."""
    random = np.random.default_rng(1)
    x = np.ldexp(numbers(0, (500, 8), 0), random.integers(-40, 40, (500, 8))).astype(F)
    x = np.concatenate([x, -random.permutation(x.ravel()).reshape(x.shape)])
    whole, rows = all_lanes(x), reference.row_sum(x).astype(F)
    assert whole != all_lanes(x[:, ::-1]), "the order matters"
    assert arithmetic.total(tf.constant(x)).numpy() == whole
    np.testing.assert_array_equal(arithmetic.total(tf.constant(x), 0), rows)


def test_these_inputs_have_results_below_the_smallest_normal_number() -> None:
    """And TensorFlow turns them to zero, so that what is compared above could differ."""
    tiny = numbers(0, (1000,), SCALES["denormal"])
    assert 0 < np.abs(tiny[tiny != 0]).max() < np.finfo(F).tiny
    halves = tf.function(lambda x: x * 0.5, autograph=False)(tf.constant(tiny)).numpy()
    assert not halves.any()
    small = numbers(0, (1000,), SCALES["small products"])
    assert 0 < np.abs(small * small).max() < np.finfo(F).tiny


def test_kernels_that_are_built_later_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "is_loaded", lambda: False)
    monkeypatch.setattr(arithmetic, "why_unavailable", lambda: "they are not built")
    assert not arithmetic.is_fixed()
    monkeypatch.setattr(arithmetic, "why_unavailable", lambda: "")
    assert arithmetic.is_fixed()
