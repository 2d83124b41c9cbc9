"""Layers without statistics, with Paceline's kernels: dense, pooling, sums and activations."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from paceline.kernels.arithmetic import mean, number, plain, positive_part, product
from paceline.kernels.ops import max_pool
from paceline.models.fast_layers import activated, is_plain, relu_slope, swish_alpha
from paceline.models.layers import SigmoidGelu


class Fast(keras.layers.Layer):
    """A stock layer without state of its own, computed by a function of `FUNCTIONS`."""

    def __init__(self, stock: keras.layers.Layer) -> None:
        super().__init__(name=stock.name, dtype=stock.dtype_policy, autocast=False)
        self.stock, self.function = stock, FUNCTIONS[type(stock)][1]

    def call(self, inputs: Any) -> tf.Tensor:
        return self.function(self.stock, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.stock.compute_output_shape(input_shape)


def _dense(layer: keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
    y = product(x, tf.convert_to_tensor(layer.kernel))
    y = plain(number(y) + tf.convert_to_tensor(layer.bias)) if layer.use_bias else y
    return activated(layer.activation, y)


def _global_mean(layer: keras.layers.GlobalAveragePooling2D, x: tf.Tensor) -> tf.Tensor:
    y = mean(tf.reshape(x, [-1, x.shape[1] * x.shape[2], x.shape[-1]]), 1)
    return y[:, None, None] if layer.keepdims else y


def _window_mean(layer: keras.layers.AveragePooling2D, x: tf.Tensor) -> tf.Tensor:
    size, stride = layer.pool_size[0], layer.strides[0]
    if size == 1:  # a slice with steps would take ten times as long
        return max_pool(x, 1, stride)
    tall, wide, channels = x.shape[1] // size, x.shape[2] // size, x.shape[3]
    x = x[:, : tall * size, : wide * size]
    rows = mean(tf.reshape(x, [-1, size, wide * size * channels]), 1)
    return tf.reshape(mean(tf.reshape(rows, [-1, size, channels]), 1), [-1, tall, wide, channels])


def _maximum(layer: keras.layers.MaxPooling2D, x: tf.Tensor) -> tf.Tensor:
    return max_pool(x, layer.pool_size[0], layer.strides[0], layer.padding.upper())


def _global_maximum(layer: keras.layers.GlobalMaxPooling2D, x: tf.Tensor) -> tf.Tensor:
    if x.shape[1] != x.shape[2]:  # of a model for images of any size
        return layer(x)
    y = max_pool(x, x.shape[1], x.shape[1])
    return y if layer.keepdims else y[:, 0, 0]


def _activation(layer: keras.Layer, x: tf.Tensor) -> tf.Tensor:
    if (alpha := swish_alpha(layer)) is None:
        return positive_part(x)
    from paceline.kernels.ops_more import swish

    one = tf.ones([x.shape[-1]])
    return swish(x, one, tf.zeros_like(one), alpha)


def _is_last(layer: keras.Layer) -> bool:
    """Return whether channels are the last axis."""
    return bool(layer.data_format == "channels_last")


def _is_square(layer: keras.Layer) -> bool:
    same = layer.pool_size[0] == layer.pool_size[1] and layer.strides[0] == layer.strides[1]
    return bool(same) and _is_last(layer)


def _is_partition(layer: keras.Layer) -> bool:
    """Return whether windows do not overlap."""
    alone = layer.pool_size[0] == 1 or layer.pool_size == layer.strides
    return _is_square(layer) and layer.padding == "valid" and alone


def _is_known(layer: keras.Layer) -> bool:
    return relu_slope(layer) == 0.0 or swish_alpha(layer) is not None


_Entry = tuple[Callable[[Any], bool], Callable[[Any, Any], tf.Tensor]]
_ACTIVATIONS = (keras.layers.ReLU, keras.layers.Activation, SigmoidGelu)
FUNCTIONS: dict[type, _Entry] = dict.fromkeys(_ACTIVATIONS, (_is_known, _activation)) | {
    keras.layers.Dense: (lambda each: len(each.input.shape) == 2, _dense),
    keras.layers.GlobalAveragePooling2D: (_is_last, _global_mean),
    keras.layers.GlobalMaxPooling2D: (
        lambda each: _is_last(each) and each.input.shape[1] == each.input.shape[2],
        _global_maximum,
    ),
    keras.layers.AveragePooling2D: (_is_partition, _window_mean),
    keras.layers.MaxPooling2D: (_is_square, _maximum),
    keras.layers.Add: (lambda each: len(each.input) == 2, lambda _, x: plain(number(x[0]) + x[1])),
    keras.layers.Rescaling: (
        lambda each: isinstance(each.scale, float) and not each.offset,
        lambda layer, x: plain(number(x) * layer.scale),
    ),
}
"""By type of layer: which ones the kernels can compute alone, and how."""


def is_fast(layer: keras.Layer) -> bool:
    """Return whether `Fast` can compute a layer."""
    kind = type(layer)
    return kind in FUNCTIONS and is_plain(layer, kind) and FUNCTIONS[kind][0](layer)
