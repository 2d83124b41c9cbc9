"""Keras layers that compute what stock layers compute, with the kernels. Each holds a stock layer,
whose weights it uses."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from paceline.kernels import ops


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
        y, batch_mean, batch_variance = self._normalise(x, gamma, beta, residual, moments)
        if not self._unbiased:
            count = tf.cast(tf.size(x) / tf.size(gamma), tf.float32)
            batch_variance *= (count - 1) / count
        kept = norm.momentum
        norm.moving_mean.assign(mean * kept + batch_mean * (1.0 - kept))
        norm.moving_variance.assign(variance * kept + batch_variance * (1.0 - kept))
        return y

    def _normalise(
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
