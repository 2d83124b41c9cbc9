"""Keras layers that compute what stock layers compute, with Paceline's kernels; and which stock
layers they can compute.

Each holds stock layers and uses their weights.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from paceline.kernels import ops
from paceline.models.layers import FusedBatchNormalization, SigmoidGelu


def _is_plain(layer: Any, *kinds: type) -> bool:
    return type(layer) in kinds and layer.compute_dtype == "float32"


def _is_plain_conv(layer: Any) -> bool:
    return (
        _is_plain(layer, keras.layers.Conv2D)
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and tuple(layer.dilation_rate) == (1, 1)
        and layer.filters % 8 == 0
    )


def is_fast_conv(layer: Any) -> bool:
    """Return whether the kernels can compute a convolution."""
    return _is_plain_conv(layer) and layer.strides[0] == layer.strides[1]


def is_biased_conv(layer: Any) -> bool:
    """Return whether the layer's bias can be added together with an activation that follows."""
    linear = _is_plain_conv(layer) and layer.activation is keras.activations.linear
    return linear and bool(layer.use_bias)


def is_linear_conv(layer: Any) -> bool:
    """Return whether the kernels can compute a convolution together with a norm that follows."""
    linear = is_fast_conv(layer) and layer.activation is keras.activations.linear
    return linear and not layer.use_bias


def is_fast_norm(layer: Any) -> bool:
    """Return whether the kernels can compute a norm."""
    return (
        _is_plain(layer, keras.layers.BatchNormalization, FusedBatchNormalization)
        and layer.center
        and layer.axis in (-1, len(layer.input.shape) - 1)
        and layer.input.shape[-1] % 8 == 0
        and not layer.synchronized
    )


def is_fast_pool(layer: Any) -> bool:
    """Return whether the kernels can compute a pooling layer."""
    return (
        _is_plain(layer, keras.layers.MaxPooling2D)
        and layer.padding == "valid"
        and layer.data_format == "channels_last"
        and tuple(layer.pool_size) == tuple(layer.strides) == (2, 2)
        and layer.input.shape[-1] % 8 == 0
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
        kernel = tf.convert_to_tensor(conv.kernel)
        if is_fast_conv(conv):
            y = ops.conv(inputs, kernel, conv.strides[0], padding)
        else:
            y = tf.nn.conv2d(inputs, kernel, conv.strides, padding)
        bias = tf.convert_to_tensor(conv.bias) if conv.use_bias else None
        if self.alpha is not None:
            return ops.swish(y, tf.ones_like(bias), bias, self.alpha)
        return conv.activation(y if bias is None else tf.nn.bias_add(y, bias))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.conv.compute_output_shape(input_shape)


class FastMaxPool2D(keras.layers.Layer):
    """A `keras.layers.MaxPooling2D` of 2x2 windows."""

    def __init__(self, pool: keras.layers.MaxPooling2D) -> None:
        super().__init__(name=pool.name, dtype=pool.dtype_policy)
        self.pool = pool

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return ops.max_pool(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.pool.compute_output_shape(input_shape)


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
            count = tf.cast(tf.size(x) / tf.size(gamma), tf.float32)
            batch_variance *= (count - 1) / count
        norm.moving_mean.assign(mean * kept + batch_mean * (1.0 - kept))
        norm.moving_variance.assign(variance * kept + batch_variance * (1.0 - kept))
        return y

    def _infer(self, x: tf.Tensor, residual: list[tf.Tensor]) -> tf.Tensor:
        tensors, epsilon = self._tensors(), self.norm.epsilon
        if self.alpha is None:
            return ops.batch_norm_inference(x, tensors, residual, epsilon, self.slope)
        gamma, beta, mean, variance = tensors
        factor = gamma / tf.sqrt(variance + epsilon)
        return ops.swish(x, factor, beta - mean * factor, self.alpha)

    def compute_output_shape(self, input_shape: Any) -> Any:
        images = input_shape[0] if isinstance(input_shape[0], list | tuple) else input_shape
        outputs = self.conv.compute_output_shape(images) if self.conv else images
        return (outputs, images) if self.fork else outputs
