"""Keras layers that compute what stock layers compute, with the kernels. Each holds a stock layer,
whose weights it uses."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from paceline.kernels import ops


class FastConv2D(keras.layers.Layer):
    """A `keras.layers.Conv2D` by own kernels."""

    def __init__(self, conv: keras.layers.Conv2D) -> None:
        super().__init__(name=conv.name, dtype=conv.dtype_policy)
        self.conv = conv

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        conv, kernel = self.conv, tf.convert_to_tensor(self.conv.kernel)
        if conv.kernel_size == (3, 3) and conv.strides == (1, 1) and inputs.shape[-1] % 8 == 0:
            outputs = ops.conv3x3(inputs, kernel)
        else:
            outputs = ops.conv(inputs, kernel, conv.strides[0])
        if conv.use_bias:
            outputs = tf.nn.bias_add(outputs, tf.convert_to_tensor(conv.bias))
        return conv.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.conv.compute_output_shape(input_shape)


class FastBatchNorm(keras.layers.Layer):
    """A `keras.layers.BatchNormalization`, then the sum with a second input if there is one, then
    a (leaky) ReLU.

    `unbiased` says which variance of the batch goes into the moving variance: Keras's layer takes
    the biased one.
    """

    def __init__(
        self, norm: keras.layers.BatchNormalization, slope: float, unbiased: bool, name: str
    ) -> None:
        super().__init__(name=name, dtype=norm.dtype_policy)
        self.norm = norm
        self._slope = slope
        self._unbiased = unbiased

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        norm = self.norm
        x, *residual = inputs if isinstance(inputs, list | tuple) else [inputs]
        gamma, beta, mean, variance = (
            tf.convert_to_tensor(each)
            for each in (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance)
        )
        if not (training and norm.trainable):
            return ops.batch_norm_inference(
                x, gamma, beta, mean, variance, residual, norm.epsilon, self._slope
            )
        y, batch_mean, batch_variance = ops.batch_norm(
            x, gamma, beta, residual, norm.epsilon, self._slope
        )
        if not self._unbiased:
            count = tf.cast(tf.size(x) / tf.size(gamma), tf.float32)
            batch_variance *= (count - 1) / count
        kept = norm.momentum
        norm.moving_mean.assign(mean * kept + batch_mean * (1.0 - kept))
        norm.moving_variance.assign(variance * kept + batch_variance * (1.0 - kept))
        return y

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0] if isinstance(input_shape[0], list | tuple) else input_shape
