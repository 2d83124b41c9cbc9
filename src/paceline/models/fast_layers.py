"""Keras layers that compute what stock layers compute, with Paceline's kernels; and which stock
layers they can compute.

Each holds stock layers and uses their weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from paceline.kernels import ops
from paceline.kernels.arithmetic import mean, number, plain, positive_part, product, square_root
from paceline.models.layers import FusedBatchNormalization, SigmoidGelu


def _is_plain(layer: Any, *kinds: type) -> bool:
    return type(layer) in kinds and layer.compute_dtype == "float32"


def is_fast_conv(layer: Any) -> bool:
    """Return whether the kernels can compute a convolution."""
    return (
        _is_plain(layer, keras.layers.Conv2D)
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and tuple(layer.dilation_rate) == (1, 1)
        and layer.strides[0] == layer.strides[1]
    )


def is_linear_conv(layer: Any, use_bias: bool = False) -> bool:
    """Return whether the kernels can compute a convolution together with what follows: a norm, or
    if it has a bias, an activation."""
    linear = is_fast_conv(layer) and layer.activation is keras.activations.linear
    return linear and layer.use_bias == use_bias


def is_fast_norm(layer: Any) -> bool:
    """Return whether the kernels can compute a norm."""
    return (
        _is_plain(layer, keras.layers.BatchNormalization, FusedBatchNormalization)
        and layer.center
        and layer.axis in (-1, len(layer.input.shape) - 1)
        and not layer.synchronized
    )


def swish_alpha(layer: Any) -> float | None:
    """Return alpha of an activation z sigmoid(alpha z); None for any other layer."""
    if isinstance(layer, SigmoidGelu):
        return SigmoidGelu.ALPHA
    function = layer.activation if isinstance(layer, keras.layers.Activation) else None
    return 1.0 if function is keras.activations.silu else None


def relu_slope(layer: Any) -> float | None:
    """Return the slope of a (leaky) ReLU below zero; None for any other layer."""
    if isinstance(layer, keras.layers.ReLU) and (layer.max_value is not None or layer.threshold):
        return None
    if isinstance(layer, keras.layers.ReLU | keras.layers.LeakyReLU):
        return float(layer.negative_slope)
    function = layer.activation if isinstance(layer, keras.layers.Activation) else None
    return 0.0 if function is keras.activations.relu else None


class FastConv2D(keras.layers.Layer):
    """A `keras.layers.Conv2D`; with `alpha`, a biased one and then z sigmoid(alpha z)."""

    def __init__(
        self, conv: keras.layers.Conv2D, alpha: float | None = None, name: str = ""
    ) -> None:
        super().__init__(name=name or conv.name, dtype=conv.dtype_policy)
        self.conv, self.alpha = conv, alpha

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        conv, padding = self.conv, self.conv.padding.upper()
        y = ops.conv(inputs, tf.convert_to_tensor(conv.kernel), conv.strides[0], padding)
        bias = tf.convert_to_tensor(conv.bias) if conv.use_bias else None
        if self.alpha is not None:
            return ops.swish(y, tf.ones_like(bias), bias, self.alpha)
        return activated(conv.activation, y if bias is None else plain(number(y) + bias))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.conv.compute_output_shape(input_shape)


class Fast(keras.layers.Layer):
    """A stock layer without state of its own, computed by a function of `FUNCTIONS`."""

    def __init__(self, stock: keras.layers.Layer) -> None:
        super().__init__(name=stock.name, dtype=stock.dtype_policy)
        self.stock, self.function = stock, FUNCTIONS[type(stock)][1]

    def call(self, inputs: Any) -> tf.Tensor:
        return self.function(self.stock, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.stock.compute_output_shape(input_shape)


class Fork(keras.layers.Layer):
    """Its input several times, for layers that share it: their gradients are added in order."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(name=name)
        self.count = count

    def call(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        return list(self._copies(inputs))

    @tf.custom_gradient
    def _copies(self, x: tf.Tensor) -> Any:
        def gradient(*given: tf.Tensor) -> tf.Tensor:
            return functools.reduce(lambda sum_, each: plain(number(sum_) + each), given)

        return tuple(tf.identity(x) for _ in range(self.count)), gradient

    def compute_output_shape(self, input_shape: Any) -> Any:
        return [input_shape] * self.count


class FastNorm(keras.layers.Layer):
    """A `keras.layers.BatchNormalization`, then the sum with a second input if there is one, then
    an activation: a (leaky) ReLU with this slope below zero, or z sigmoid(alpha z).

    With `conv`, a convolution without bias comes first. Training computes the norm's statistics in
    it, inference the whole norm. With `fork`, there are two outputs: the second is the input once
    more, for the shortcut.
    """

    def __init__(
        self,
        norm: keras.layers.BatchNormalization,
        name: str,
        slope: float = 1.0,
        alpha: float | None = None,
        conv: keras.layers.Conv2D | None = None,
        fork: bool = False,
    ) -> None:
        super().__init__(name=name, dtype=norm.dtype_policy)
        self.norm, self.conv, self.fork = norm, conv, fork
        self.slope, self.alpha = slope, alpha

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x, *residual = inputs if isinstance(inputs, list | tuple) else [inputs]
        norm, conv, through, learns = self.norm, self.conv, x, training and self.norm.trainable
        if conv is None:
            return self._train(x, residual, []) if learns else self._infer(x, residual)
        kernel, epsilon = tf.convert_to_tensor(conv.kernel), norm.epsilon
        stride, padding = conv.strides[0], conv.padding.upper()
        if learns:
            y, moments, through = ops.conv_moments(x, kernel, stride, epsilon, self.fork, padding)
            y = self._train(y, residual, moments)
        else:
            y = ops.conv_norm_inference(
                x, kernel, stride, self._tensors(), residual, epsilon, self.slope, padding
            )
        return (y, through) if self.fork else y

    def _tensors(self) -> list[tf.Tensor]:
        """Return gamma, beta, mean and variance."""
        norm = self.norm
        variables = (norm.beta, norm.moving_mean, norm.moving_variance)
        beta, mean, variance = (tf.convert_to_tensor(each) for each in variables)
        gamma = tf.convert_to_tensor(norm.gamma) if norm.scale else tf.ones_like(beta)
        return [gamma, beta, mean, variance]

    def _train(
        self, x: tf.Tensor, residual: list[tf.Tensor], moments: list[tf.Tensor]
    ) -> tf.Tensor:
        norm, kept = self.norm, self.norm.momentum
        gamma, beta, mean, variance = self._tensors()
        if self.alpha is None:
            found = ops.batch_norm(x, gamma, beta, residual, norm.epsilon, self.slope, moments)
        else:
            found = ops.norm_swish(x, gamma, beta, norm.epsilon, self.alpha)
        y, batch_mean, batch_variance = found
        if not isinstance(norm, FusedBatchNormalization):  # Keras's own takes the biased variance
            count = number(tf.cast(tf.size(x) // tf.size(gamma), tf.float32))
            batch_variance = plain((count - 1.0) / count * batch_variance)
        for old, value, new in (
            (norm.moving_mean, mean, batch_mean),
            (norm.moving_variance, variance, batch_variance),
        ):
            old.assign(plain(number(value) * kept + number(new) * (1.0 - kept)))
        return y

    def _infer(self, x: tf.Tensor, residual: list[tf.Tensor]) -> tf.Tensor:
        tensors, epsilon = self._tensors(), self.norm.epsilon
        if self.alpha is None:
            return ops.batch_norm_inference(x, tensors, residual, epsilon, self.slope)
        gamma, beta, mean, variance = tensors
        factor = gamma / square_root(number(variance) + epsilon)
        return ops.swish(x, plain(factor), plain(beta - mean * factor), self.alpha)

    def compute_output_shape(self, input_shape: Any) -> Any:
        images = input_shape[0] if isinstance(input_shape[0], list | tuple) else input_shape
        outputs = self.conv.compute_output_shape(images) if self.conv else images
        return (outputs, images) if self.fork else outputs


def foreign_activation(layer: Any) -> str:
    """Return the name of the activation within a fast layer that TensorFlow computes, or ""."""
    stock = getattr(layer, "stock", getattr(layer, "conv", None))
    function = getattr(stock, "activation", None)
    ours = (None, keras.activations.linear, keras.activations.relu)
    if function in ours or isinstance(stock, keras.layers.Activation):  # the whole layer is ours
        return ""
    return getattr(function, "__name__", type(function).__name__)


def activated(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Return the activation of a layer."""
    return positive_part(x) if function is keras.activations.relu else function(x)


def _dense(layer: keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
    y = product(x, tf.convert_to_tensor(layer.kernel))
    y = plain(number(y) + tf.convert_to_tensor(layer.bias)) if layer.use_bias else y
    return activated(layer.activation, y)


def _global_mean(layer: keras.layers.GlobalAveragePooling2D, x: tf.Tensor) -> tf.Tensor:
    channels = x.shape[-1]
    y = mean(tf.reshape(x, [-1, x.shape[1] * x.shape[2], channels]), 1)
    return y[:, None, None] if layer.keepdims else y


def _window_mean(layer: keras.layers.AveragePooling2D, x: tf.Tensor) -> tf.Tensor:
    size, stride = layer.pool_size[0], layer.strides[0]
    if size == 1:
        return x[:, ::stride, ::stride]
    tall, wide, channels = x.shape[1] // size, x.shape[2] // size, x.shape[3]
    x = x[:, : tall * size, : wide * size]
    rows = mean(tf.reshape(x, [-1, size, wide * size * channels]), 1)
    return tf.reshape(mean(tf.reshape(rows, [-1, size, channels]), 1), [-1, tall, wide, channels])


def _maximum(layer: keras.layers.MaxPooling2D, x: tf.Tensor) -> tf.Tensor:
    return ops.max_pool(x, layer.pool_size[0], layer.strides[0], layer.padding.upper())


def _global_maximum(layer: keras.layers.GlobalMaxPooling2D, x: tf.Tensor) -> tf.Tensor:
    side = x.shape[1]
    y = ops.max_pool(x, side, side)
    return y if layer.keepdims else y[:, 0, 0]


def _swish(layer: Any, x: tf.Tensor) -> tf.Tensor:
    one = tf.ones([x.shape[-1]])
    return ops.swish(x, one, tf.zeros_like(one), swish_alpha(layer) or 1.0)


def _is_square(layer: Any) -> bool:
    same = layer.pool_size[0] == layer.pool_size[1] and layer.strides[0] == layer.strides[1]
    return bool(same) and layer.data_format == "channels_last"


FUNCTIONS: dict[type, tuple[Callable[[Any], bool], Callable[[Any, Any], tf.Tensor]]] = {
    keras.layers.Dense: (lambda each: len(each.input.shape) == 2, _dense),
    keras.layers.GlobalAveragePooling2D: (
        lambda each: each.data_format == "channels_last",
        _global_mean,
    ),
    keras.layers.GlobalMaxPooling2D: (
        lambda each: (
            each.data_format == "channels_last" and each.input.shape[1] == each.input.shape[2]
        ),
        _global_maximum,
    ),
    keras.layers.AveragePooling2D: (
        lambda each: (
            _is_square(each)
            and each.padding == "valid"
            and (each.pool_size[0] == 1 or each.pool_size == each.strides)
        ),
        _window_mean,
    ),
    keras.layers.MaxPooling2D: (_is_square, _maximum),
    keras.layers.Add: (lambda each: len(each.input) == 2, lambda _, x: plain(number(x[0]) + x[1])),
    keras.layers.Rescaling: (
        lambda each: isinstance(each.scale, float) and not each.offset,
        lambda layer, x: plain(number(x) * layer.scale),
    ),
    keras.layers.ReLU: (lambda each: relu_slope(each) == 0.0, lambda _, x: positive_part(x)),
    keras.layers.Activation: (
        lambda each: relu_slope(each) == 0.0 or swish_alpha(each) is not None,
        lambda layer, x: positive_part(x) if relu_slope(layer) == 0.0 else _swish(layer, x),
    ),
    SigmoidGelu: (lambda each: True, lambda layer, x: _swish(layer, x)),
}
"""By type of layer: which ones the kernels can compute alone, and how."""


def is_fast(layer: Any) -> bool:
    """Return whether `Fast` can compute a layer."""
    kind = type(layer)
    return kind in FUNCTIONS and _is_plain(layer, kind) and FUNCTIONS[kind][0](layer)
