"""Keras layers that compute what stock layers compute, with the kernels.

Each holds a stock layer and uses its weights.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from paceline.kernels import ops
from paceline.models.activations import SigmoidGelu


def is_fast_conv(layer: Any) -> bool:
    """Return whether own kernels can compute a layer: a plain convolution in float32."""
    if type(layer) is not keras.layers.Conv2D or layer.compute_dtype != "float32":
        return False
    strides, dilation = tuple(layer.strides), tuple(layer.dilation_rate)
    return (
        layer.padding in ("same", "valid")
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and dilation == (1, 1)
        and strides[0] == strides[1]
        and layer.filters % 8 == 0
    )


def swish_alpha(layer: Any) -> float | None:
    """Return alpha of an activation z sigmoid(alpha z); None for any other layer."""
    if isinstance(layer, SigmoidGelu):
        return SigmoidGelu.ALPHA
    is_silu = (
        isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.silu
    )
    return 1.0 if is_silu else None


def is_fast_pool(layer: Any) -> bool:
    return (
        type(layer) is keras.layers.MaxPooling2D
        and layer.compute_dtype == "float32"
        and layer.padding == "valid"
        and layer.data_format == "channels_last"
        and tuple(layer.pool_size) == tuple(layer.strides) == (2, 2)
        and layer.input.shape[-1] % 8 == 0
    )


def is_biased_conv(layer: Any) -> bool:
    """Return whether the layer's bias can be added together with an activation that follows."""
    return (
        type(layer) is keras.layers.Conv2D
        and layer.compute_dtype == "float32"
        and layer.use_bias
        and layer.activation is keras.activations.linear
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and tuple(layer.dilation_rate) == (1, 1)
        and layer.filters % 8 == 0
    )


class FastConv2D(keras.layers.Layer):
    """A `keras.layers.Conv2D` by own kernels."""

    def __init__(self, conv: keras.layers.Conv2D) -> None:
        super().__init__(name=conv.name, dtype=conv.dtype_policy)
        self.conv = conv

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        conv = self.conv
        kernel, padding = tf.convert_to_tensor(conv.kernel), conv.padding.upper()
        outputs = ops.conv(inputs, kernel, conv.strides[0], padding)
        if conv.use_bias:
            outputs = tf.nn.bias_add(outputs, tf.convert_to_tensor(conv.bias))
        return conv.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.conv.compute_output_shape(input_shape)


class FastBatchNorm(keras.layers.Layer):
    """A `keras.layers.BatchNormalization`, then the sum with a second input if there is one, then
    a (leaky) ReLU.

    `unbiased`: whether the moving variance takes the unbiased variance of the batch. Keras's own
    layer takes the biased one.
    """

    def __init__(
        self, norm: keras.layers.BatchNormalization, slope: float, unbiased: bool, name: str
    ) -> None:
        super().__init__(name=name, dtype=norm.dtype_policy)
        self.norm = norm
        self._slope = slope
        self._unbiased = unbiased

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        x, *residual = inputs if isinstance(inputs, list | tuple) else [inputs]
        if training and self.norm.trainable:
            return self._train(x, residual)
        return self._infer(x, residual)

    def _tensors(self) -> list[tf.Tensor]:
        norm = self.norm
        variables = (norm.beta, norm.moving_mean, norm.moving_variance)
        beta, mean, variance = (tf.convert_to_tensor(each) for each in variables)
        gamma = tf.convert_to_tensor(norm.gamma) if norm.scale else tf.ones_like(beta)
        return [gamma, beta, mean, variance]

    def _train(
        self, x: tf.Tensor, residual: list[tf.Tensor], moments: list[tf.Tensor] | None = None
    ) -> tf.Tensor:
        norm = self.norm
        gamma, beta, mean, variance = self._tensors()
        y, batch_mean, batch_variance = self._normalize(x, gamma, beta, residual, moments)
        if not self._unbiased:
            count = tf.cast(tf.size(x) / tf.size(gamma), tf.float32)
            batch_variance *= (count - 1) / count
        kept = norm.momentum
        norm.moving_mean.assign(mean * kept + batch_mean * (1.0 - kept))
        norm.moving_variance.assign(variance * kept + batch_variance * (1.0 - kept))
        return y

    def _normalize(
        self,
        x: tf.Tensor,
        gamma: tf.Tensor,
        beta: tf.Tensor,
        residual: list[tf.Tensor],
        moments: list[tf.Tensor] | None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the outputs, and the mean and unbiased variance of the batch."""
        return ops.batch_norm(x, gamma, beta, residual, self.norm.epsilon, self._slope, moments)

    def _infer(self, x: tf.Tensor, residual: list[tf.Tensor]) -> tf.Tensor:
        gamma, beta, mean, variance = self._tensors()
        return ops.batch_norm_inference(
            x, gamma, beta, mean, variance, residual, self.norm.epsilon, self._slope
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0] if isinstance(input_shape[0], list | tuple) else input_shape


class FastConvNorm(FastBatchNorm):
    """A convolution without bias and the norm after it, with what follows that.

    Training computes the norm's statistics in the convolution, inference the whole norm. With
    `fork`, there are two outputs: the second is the input once more, for the shortcut.
    """

    def __init__(
        self,
        conv: keras.layers.Conv2D,
        norm: keras.layers.BatchNormalization,
        slope: float,
        unbiased: bool,
        fork: bool,
        name: str,
    ) -> None:
        super().__init__(norm, slope, unbiased, name)
        self.conv = conv
        self._fork = fork

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x, *residual = inputs if isinstance(inputs, list | tuple) else [inputs]
        norm, stride, padding = self.norm, self.conv.strides[0], self.conv.padding.upper()
        kernel, through = tf.convert_to_tensor(self.conv.kernel), x
        if training and norm.trainable:
            outputs, moments, through = ops.conv_moments(
                x, kernel, stride, norm.epsilon, self._fork, padding
            )
            y = self._train(outputs, residual, moments)
        else:
            y = ops.conv_norm_inference(
                x, kernel, stride, self._tensors(), residual, norm.epsilon, self._slope, padding
            )
        return (y, through) if self._fork else y

    def compute_output_shape(self, input_shape: Any) -> Any:
        images = super().compute_output_shape(input_shape)
        outputs = self.conv.compute_output_shape(images)
        return (outputs, images) if self._fork else outputs


class FastMaxPool2D(keras.layers.Layer):
    """A `keras.layers.MaxPooling2D` of 2x2 windows."""

    def __init__(self, pool: keras.layers.MaxPooling2D) -> None:
        super().__init__(name=pool.name, dtype=pool.dtype_policy)
        self.pool = pool

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return ops.max_pool(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.pool.compute_output_shape(input_shape)


class FastConvSwish(keras.layers.Layer):
    """A `keras.layers.Conv2D` with a bias, then z sigmoid(alpha z)."""

    def __init__(self, conv: keras.layers.Conv2D, alpha: float, name: str) -> None:
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
        return ops.swish(y, tf.ones_like(bias), bias, self._alpha)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.conv.compute_output_shape(input_shape)


class FastNormSwish(FastBatchNorm):
    """A `keras.layers.BatchNormalization`, then z sigmoid(alpha z)."""

    def __init__(
        self, norm: keras.layers.BatchNormalization, alpha: float, unbiased: bool, name: str
    ) -> None:
        super().__init__(norm, 1.0, unbiased, name)
        self._alpha = alpha

    def _normalize(
        self,
        x: tf.Tensor,
        gamma: tf.Tensor,
        beta: tf.Tensor,
        residual: list[tf.Tensor],
        moments: list[tf.Tensor] | None,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        return ops.norm_swish(x, gamma, beta, self.norm.epsilon, self._alpha)

    def _infer(self, x: tf.Tensor, residual: list[tf.Tensor]) -> tf.Tensor:
        gamma, beta, mean, variance = self._tensors()
        factor = gamma / tf.sqrt(variance + self.norm.epsilon)
        return ops.swish(x, factor, beta - mean * factor, self._alpha)
