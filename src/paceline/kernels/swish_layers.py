"""Keras layers that compute max-pooling, and z sigmoid(alpha z) together with what precedes it,
with the kernels. Each holds a stock layer, whose weights it uses."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from paceline.kernels import ops, swish_ops
from paceline.kernels.layers import FastBatchNorm, is_fast_conv
from paceline.models.activations import SigmoidGelu


def swish_alpha(layer: Any) -> float | None:
    """Return alpha of an activation z sigmoid(alpha z); None of anything else."""
    if isinstance(layer, SigmoidGelu):
        return SigmoidGelu.ALPHA
    is_silu = isinstance(layer, layers.Activation) and layer.activation is keras.activations.silu
    return 1.0 if is_silu else None


def is_fast_pool(layer: Any) -> bool:
    return (
        type(layer) is layers.MaxPooling2D
        and layer.compute_dtype == "float32"
        and layer.padding == "valid"
        and layer.data_format == "channels_last"
        and tuple(layer.pool_size) == tuple(layer.strides) == (2, 2)
        and layer.input.shape[-1] % 8 == 0
    )


def is_biased_conv(layer: Any) -> bool:
    """Return whether the layer's bias can be added together with an activation that follows."""
    return (
        type(layer) is layers.Conv2D
        and layer.compute_dtype == "float32"
        and layer.use_bias
        and layer.activation is keras.activations.linear
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and tuple(layer.dilation_rate) == (1, 1)
        and layer.filters % 8 == 0
    )


class FastMaxPool2D(keras.layers.Layer):
    """A `keras.layers.MaxPooling2D` of 2x2 windows."""

    def __init__(self, pool: layers.MaxPooling2D) -> None:
        super().__init__(name=pool.name, dtype=pool.dtype_policy)
        self.pool = pool

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return swish_ops.max_pool(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.pool.compute_output_shape(input_shape)


class FastConvSwish(keras.layers.Layer):
    """A `keras.layers.Conv2D` with a bias, then z sigmoid(alpha z)."""

    def __init__(self, conv: layers.Conv2D, alpha: float, name: str) -> None:
        super().__init__(name=name, dtype=conv.dtype_policy)
        self.conv = conv
        self._alpha = alpha

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        kernel, bias = (tf.convert_to_tensor(each) for each in (self.conv.kernel, self.conv.bias))
        padding, strides = self.conv.padding.upper(), self.conv.strides
        if is_fast_conv(self.conv):
            y = ops.conv(inputs, kernel, strides[0], padding)
        else:
            y = tf.nn.conv2d(inputs, kernel, strides, padding)
        return swish_ops.swish(y, tf.ones_like(bias), bias, self._alpha)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.conv.compute_output_shape(input_shape)


class FastNormSwish(FastBatchNorm):
    """A `keras.layers.BatchNormalization`, then z sigmoid(alpha z)."""

    def __init__(
        self, norm: layers.BatchNormalization, alpha: float, unbiased: bool, name: str
    ) -> None:
        super().__init__(norm, 1.0, unbiased, name)
        self._alpha = alpha

    def _normalise(
        self,
        x: tf.Tensor,
        gamma: tf.Tensor,
        beta: tf.Tensor,
        residual: list[tf.Tensor],
        moments: list[tf.Tensor] | None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return swish_ops.norm_swish(x, gamma, beta, self.norm.epsilon, self._alpha)

    def _infer(self, x: tf.Tensor, residual: list[tf.Tensor]) -> tf.Tensor:
        gamma, beta, mean, variance = self._tensors()
        factor = gamma / tf.sqrt(variance + self.norm.epsilon)
        return swish_ops.swish(x, factor, beta - mean * factor, self._alpha)
