"""Fast layers that end with z sigmoid(alpha z): SiLU, and the sigmoid form of GELU."""

import keras
import tensorflow as tf

from paceline.kernels.arithmetic import number, plain, square_root
from paceline.kernels.ops_more import norm_swish, swish
from paceline.models.fast_layers import FastConv2D, FastNorm, Tensors


class SwishConv2D(FastConv2D):
    """A `keras.layers.Conv2D` with a bias, then the activation."""

    def __init__(self, conv: keras.layers.Conv2D, name: str, alpha: float) -> None:
        super().__init__(conv, name)
        self.alpha = alpha

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        bias = tf.convert_to_tensor(self.conv.bias)
        return swish(self.convolve(inputs), tf.ones_like(bias), bias, self.alpha)


class SwishNorm(FastNorm):
    """A `keras.layers.BatchNormalization`, then the activation."""

    def __init__(self, norm: keras.layers.BatchNormalization, name: str, alpha: float) -> None:
        super().__init__(norm, name)
        self.alpha = alpha

    def normalize(
        self, x: tf.Tensor, weights: Tensors, residual: Tensors, moments: Tensors
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        gamma, beta = weights
        return norm_swish(x, gamma, beta, self.norm.epsilon, self.alpha)

    def _infer(self, x: tf.Tensor, residual: list[tf.Tensor]) -> tf.Tensor:
        gamma, beta, mean, variance = self.tensors()
        factor = gamma / square_root(number(variance) + self.norm.epsilon)
        return swish(x, plain(factor), plain(beta - mean * factor), self.alpha)
