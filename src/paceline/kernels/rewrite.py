"""A Keras model -> the same model on own kernels, with the same weights. What the kernels cannot do
stays as it is."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from paceline.config.experiment import Experiment
from paceline.kernels.choice import choose_kernels
from paceline.kernels.layers import FastBatchNorm, FastConv2D
from paceline.models.batch_norm import FusedBatchNormalization

IM2COL_LIMIT = 32 * 64
"""Largest product of input and output channels for which im2col is faster than TensorFlow's
convolution."""


def accelerate(model: keras.Model) -> keras.Model:
    """Return a model that computes the same on own kernels and shares the weights of `model`.

    Functional and Sequential models of float32 are rewritten layer by layer: convolutions with SAME
    padding, and batch normalisation together with a sum and a (leaky) ReLU that follow it. Any
    other model is returned unchanged.

    Example:
        fast = paceline.kernels.accelerate(keras.applications.ResNet50(weights=None))
    """
    if isinstance(model, keras.Sequential):
        model = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    if not hasattr(model, "_nodes_by_depth"):  # a subclass with a `call` of its own
        return model
    rewrite = _Rewrite(model)
    return keras.models.clone_model(
        model, clone_function=lambda layer: layer, call_function=rewrite.call
    )


def accelerated(experiment: Experiment, model: keras.Model, uses_gpus: bool) -> keras.Model | None:
    """Return the model on own kernels if the experiment uses them, else None."""
    return accelerate(model) if choose_kernels(experiment, uses_gpus) == "own" else None


class _Rewrite:
    """Calls the layers of a model again, on new tensors, some of them replaced.

    A norm is called at once and remembered. If all that uses it turns out to be a sum or an
    activation, the norm is called
    again together with them; what was called before is then not part of the new model.
    """

    def __init__(self, model: keras.Model) -> None:
        nodes = [node for depth in model._nodes_by_depth.values() for node in depth]
        self._calls: dict[int, int] = {}
        self._uses: dict[int, int] = {}
        for node in nodes:
            self._calls[id(node.operation)] = self._calls.get(id(node.operation), 0) + 1
            for tensor in node.input_tensors:
                source = id(tensor._keras_history.operation)
                self._uses[source] = self._uses.get(source, 0) + 1
        for tensor in model.outputs:
            source = id(tensor._keras_history.operation)
            self._uses[source] = self._uses.get(source, 0) + 1
        self._norms: dict[int, tuple[Any, list[Any]]] = {}
        """By output tensor: the norm, and its inputs with the residual."""

    def call(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(operation, "_nodes_by_depth"):  # a model within the model
            return accelerate(operation)(*args, **kwargs)
        if _is_fast_conv(operation) and self._calls[id(operation)] == 1:
            return FastConv2D(operation)(*args)
        if _is_fast_norm(operation) and self._calls[id(operation)] == 1:
            return self._remember(operation, [args[0]], operation)
        if isinstance(operation, layers.Add) and len(args[0]) == 2:
            return self._add(operation, *args[0])
        slope = _slope(operation)
        if slope is not None and id(args[0]) in self._norms:
            norm, inputs = self._norms[id(args[0])]
            return _fast_norm(norm, slope, operation.name)(inputs if len(inputs) > 1 else inputs[0])
        return operation(*args, **kwargs)

    def _add(self, operation: Any, left: Any, right: Any) -> Any:
        """A sum of which one side is a norm that nobody else uses is part of the norm."""
        for one, other in ((left, right), (right, left)):
            norm, inputs = self._norms.get(id(one), (None, []))
            if len(inputs) == 1 and tuple(one.shape) == tuple(other.shape):
                return self._remember(norm, [inputs[0], other], operation)
        return operation([left, right])

    def _remember(self, norm: Any, inputs: list[Any], operation: Any) -> Any:
        output = _fast_norm(norm, 1.0, operation.name)(inputs if len(inputs) > 1 else inputs[0])
        if self._uses.get(id(operation)) == 1:
            self._norms[id(output)] = (norm, inputs)
        return output


def _fast_norm(norm: Any, slope: float, name: str) -> FastBatchNorm:
    return FastBatchNorm(norm, slope, isinstance(norm, FusedBatchNormalization), name)


def _is_fast_conv(layer: Any) -> bool:
    if type(layer) is not layers.Conv2D or layer.compute_dtype != "float32":
        return False
    channels, size, strides = layer.kernel.shape[2], layer.kernel_size, layer.strides
    plain = layer.padding == "same" and layer.data_format == "channels_last" and layer.groups == 1
    if not plain or tuple(layer.dilation_rate) != (1, 1) or layer.filters % 8:
        return False
    if tuple(size) == (3, 3) and tuple(strides) == (1, 1) and channels % 8 == 0:
        return True
    return (
        size[0] * size[1] > 1
        and strides[0] == strides[1]
        and channels * layer.filters <= IM2COL_LIMIT
    )


def _is_fast_norm(layer: Any) -> bool:
    return (
        type(layer) in (layers.BatchNormalization, FusedBatchNormalization)
        and layer.compute_dtype == "float32"
        and layer.center
        and layer.scale
        and layer.axis in (-1, len(layer.input.shape) - 1)
        and layer.input.shape[-1] % 8 == 0
        and not layer.synchronized
    )


def _slope(layer: Any) -> float | None:
    """Return the slope of a (leaky) ReLU below zero; None of anything else."""
    if isinstance(layer, layers.LeakyReLU):
        return float(layer.negative_slope)
    if isinstance(layer, layers.ReLU) and layer.max_value is None and not layer.threshold:
        return float(layer.negative_slope)
    if isinstance(layer, layers.Activation) and layer.activation is keras.activations.relu:
        return 0.0
    return None
