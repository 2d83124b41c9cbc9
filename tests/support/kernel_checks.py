"""Compares Paceline's kernels with TensorFlow's, in single and double precision."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.kernels import library

needs_kernels = pytest.mark.skipif(
    bool(library.why_unavailable()), reason=f"Paceline's kernels: {library.why_unavailable()}"
)

Function = Callable[..., tf.Tensor]


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_gradients(
    function: Function, arguments: Sequence[np.ndarray], dy: np.ndarray
) -> list[np.ndarray]:
    """Return the output and the gradients of all arguments, in their own precision."""
    tensors = [tf.constant(each) for each in arguments]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
        loss = tf.reduce_sum(y * tf.cast(dy, y.dtype))
    return [each.numpy() for each in (y, *tape.gradient(loss, tensors))]


def error(found: np.ndarray, exact: np.ndarray) -> float:
    return np.linalg.norm((found - exact).ravel()) / (np.linalg.norm(exact.ravel()) + 1e-30)


def compare(
    function: Function,
    stock: Function,
    arguments: Sequence[np.ndarray],
    dy: np.ndarray,
    times: float = 12.0,
) -> None:
    """Assert that no error is more than `times` TensorFlow's own, or 1e-6."""
    double = [np.float64(each) for each in arguments]
    own, theirs, exact = (
        with_gradients(function, arguments, dy),
        with_gradients(stock, arguments, dy),
        with_gradients(stock, double, dy),
    )
    for mine, other, right in zip(own, theirs, exact, strict=True):
        assert mine.shape == right.shape
        assert error(mine, right) <= times * max(error(other, right), 1e-6)


def model_errors(fast: keras.Model, model: keras.Model, x: np.ndarray, training: bool) -> float:
    """Return the largest error of outputs, gradients and new statistics of a rewritten model."""
    found, expected = model_values(fast, model, x, training)
    return max(error(a, b) for a, b in zip(found, expected, strict=True))


def model_values(
    fast: keras.Model, model: keras.Model, x: np.ndarray, training: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return outputs, gradients and new statistics of a rewritten model and of the model."""
    variables = model.variables
    return _values(fast, variables, x, training), _values(model, variables, x, training)


def _values(
    model: keras.Model, variables: Sequence[Any], x: Any, training: bool
) -> list[np.ndarray]:
    tensors = [tf.convert_to_tensor(v) for v in variables]
    trained = [tensor for v, tensor in zip(variables, tensors, strict=True) if v.trainable]
    mapping = list(zip(variables, tensors, strict=True))
    with tf.GradientTape() as tape:
        tape.watch(trained)
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = model(x, training=training)
        loss = tf.reduce_sum(outputs * outputs)
    gradients = tape.gradient(loss, trained)
    found = [outputs, *gradients, *(scope.get_current_value(v) for v in variables)]
    return [np.asarray(each) for each in found]


def kinds(model: keras.Model) -> list[str]:
    return [type(layer).__name__ for layer in model.layers]
