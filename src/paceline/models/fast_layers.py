"""Keras layers that compute what convolutions and norms compute, with Paceline's kernels; and which
of them they can compute. `fast_functions` has the layers without state. Each holds stock layers and
uses their weights. Images between them may be bfloat16, which all other layers get as float32."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from paceline.kernels import ops
from paceline.kernels.arithmetic import number, plain, positive_part
from paceline.models.layers import FusedBatchNormalization, SigmoidGelu

Tensors = list[tf.Tensor]


def is_plain(layer: keras.Layer, *kinds: type) -> bool:
    """Return whether a layer is of one of these types, without subclasses, and of float32."""
    return type(layer) in kinds and layer.compute_dtype == "float32"


def is_fast_conv(layer: keras.Layer) -> bool:
    """Return whether the kernels can compute a convolution."""
    return (
        is_plain(layer, keras.layers.Conv2D)
        and layer.data_format == "channels_last"
        and layer.groups == 1
        and tuple(layer.dilation_rate) == (1, 1)
        and layer.strides[0] == layer.strides[1]
    )


def is_linear_conv(layer: keras.Layer, use_bias: bool = False) -> bool:
    """Return whether the kernels can compute a convolution together with what follows: a norm, or
    if it has a bias, an activation."""
    linear = is_fast_conv(layer) and layer.activation is keras.activations.linear
    return linear and layer.use_bias == use_bias


def is_fast_norm(layer: keras.Layer) -> bool:
    """Return whether the kernels can compute a norm."""
    return (
        is_plain(layer, keras.layers.BatchNormalization, FusedBatchNormalization)
        and layer.center
        and layer.axis in (-1, len(layer.input.shape) - 1)
        and not layer.synchronized
    )


def swish_alpha(layer: keras.Layer) -> float | None:
    """Return alpha of an activation z sigmoid(alpha z); None for any other layer."""
    if isinstance(layer, SigmoidGelu):
        return SigmoidGelu.ALPHA
    function = layer.activation if isinstance(layer, keras.layers.Activation) else None
    return 1.0 if function is keras.activations.silu else None


def relu_slope(layer: keras.Layer) -> float | None:
    """Return the slope of a (leaky) ReLU below zero; None for any other layer."""
    if isinstance(layer, keras.layers.ReLU) and (layer.max_value is not None or layer.threshold):
        return None
    if isinstance(layer, keras.layers.ReLU | keras.layers.LeakyReLU):
        return float(layer.negative_slope)
    function = layer.activation if isinstance(layer, keras.layers.Activation) else None
    return 0.0 if function is keras.activations.relu else None


class FastConv2D(keras.layers.Layer):
    """A `keras.layers.Conv2D`."""

    def __init__(self, conv: keras.layers.Conv2D, name: str = "") -> None:
        super().__init__(name=name or conv.name, dtype=conv.dtype_policy, autocast=False)
        self.conv = conv

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        y, conv = self.convolve(inputs), self.conv
        y = plain(number(y) + tf.convert_to_tensor(conv.bias)) if conv.use_bias else y
        return activated(conv.activation, y)

    def convolve(self, x: tf.Tensor) -> tf.Tensor:
        """Return the convolution without bias and activation."""
        conv, kernel = self.conv, tf.convert_to_tensor(self.conv.kernel)
        return ops.conv(x, kernel, conv.strides[0], conv.padding.upper())

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.conv.compute_output_shape(input_shape)


class Fork(keras.layers.Layer):
    """Its input several times, for layers that share it: their gradients are added in order."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(name=name, autocast=False)
        self.count = count

    def call(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        return list(self._copies(inputs))

    @tf.custom_gradient
    def _copies(self, x: tf.Tensor) -> Any:
        def gradient(*given: tf.Tensor) -> tf.Tensor:
            return functools.reduce(ops.load().paceline_add, given)

        return tuple(tf.identity(x) for _ in range(self.count)), gradient

    def compute_output_shape(self, input_shape: Any) -> Any:
        return [input_shape] * self.count


class FastNorm(keras.layers.Layer):
    """A `keras.layers.BatchNormalization`, then the sum with a second input if there is one, then a
    (leaky) ReLU with this slope below zero. With `conv`, a convolution without bias comes first.
    Training computes the norm's statistics in it, inference the whole norm. With `fork`, the second
    output is the input, for the shortcut.
    """

    def __init__(
        self,
        norm: keras.layers.BatchNormalization,
        name: str,
        slope: float = 1.0,
        conv: keras.layers.Conv2D | None = None,
        fork: bool = False,
    ) -> None:
        super().__init__(name=name, dtype=norm.dtype_policy, autocast=False)
        self.norm, self.slope, self.conv, self.fork = norm, slope, conv, fork

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x, *residual = inputs if isinstance(inputs, list | tuple) else [inputs]
        norm, conv, moments, through = self.norm, self.conv, list[tf.Tensor](), x
        if not (training and norm.trainable):
            y = self._infer(x, residual)
            return (y, x) if self.fork else y
        if conv is not None:
            kernel, padding = tf.convert_to_tensor(conv.kernel), conv.padding.upper()
            x, moments, through = ops.conv_moments(
                x, kernel, conv.strides[0], norm.epsilon, self.fork, padding
            )
        gamma, beta, *moving = self.tensors()
        y, mean, variance = self.normalize(x, [gamma, beta], residual, moments)
        if not isinstance(norm, FusedBatchNormalization):  # Keras's own takes the biased variance
            count = number(tf.cast(tf.size(x) // tf.size(gamma), tf.float32))
            variance = plain((count - 1.0) / count * variance)
        kept, variables = norm.momentum, (norm.moving_mean, norm.moving_variance)
        for variable, old, new in zip(variables, moving, (mean, variance), strict=True):
            variable.assign(plain(number(old) * kept + number(new) * (1.0 - kept)))
        return (y, through) if self.fork else y

    def tensors(self) -> list[tf.Tensor]:
        """Return gamma, beta, mean and variance."""
        norm = self.norm
        variables = (norm.beta, norm.moving_mean, norm.moving_variance)
        beta, mean, variance = (tf.convert_to_tensor(each) for each in variables)
        gamma = tf.convert_to_tensor(norm.gamma) if norm.scale else tf.ones_like(beta)
        return [gamma, beta, mean, variance]

    def normalize(
        self, x: tf.Tensor, weights: Tensors, residual: Tensors, moments: Tensors
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the output of training, and the mean and unbiased variance of the batch."""
        gamma, beta = weights
        return ops.batch_norm(x, gamma, beta, residual, self.norm.epsilon, self.slope, moments)

    def _infer(self, x: tf.Tensor, residual: list[tf.Tensor]) -> tf.Tensor:
        from paceline.kernels import ops_more

        tensors, epsilon, conv = self.tensors(), self.norm.epsilon, self.conv
        if conv is None:
            return ops_more.batch_norm_inference(x, tensors, residual, epsilon, self.slope)
        kernel, stride = tf.convert_to_tensor(conv.kernel), conv.strides[0]
        return ops_more.conv_norm_inference(
            x, kernel, stride, tensors, residual, epsilon, self.slope, conv.padding.upper()
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        images = input_shape[0] if isinstance(input_shape[0], list | tuple) else input_shape
        outputs = self.conv.compute_output_shape(images) if self.conv else images
        return (outputs, images) if self.fork else outputs


def foreign_activation(layer: keras.Layer) -> str:
    """Return the name of the activation within a fast layer that TensorFlow computes, or ""."""
    stock = getattr(layer, "stock", getattr(layer, "conv", None))
    function = getattr(stock, "activation", None)
    ours = (None, keras.activations.linear, keras.activations.relu)
    if function in ours or isinstance(stock, keras.layers.Activation):  # the whole layer is ours
        return ""
    return getattr(function, "__name__", type(function).__name__)


def activated(function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Return the activation of a layer."""
    if function is keras.activations.linear:
        return x
    return positive_part(x) if function is keras.activations.relu else function(ops.widened(x))
