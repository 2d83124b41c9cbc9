"""Rewrites a Keras model to use Paceline's kernels, with the same weights.

What the kernels cannot compute stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import layers

from paceline.kernels import ops
from paceline.kernels.layers import (
    FastBatchNorm,
    FastConv2D,
    FastConvNorm,
    FastConvSwish,
    FastMaxPool2D,
    FastNormSwish,
    is_biased_conv,
    is_fast_conv,
    is_fast_pool,
    swish_alpha,
)
from paceline.models.batch_norm import FusedBatchNormalization
from paceline.models.keras_graph import calls_of, is_graph, producer_of


def accelerate(model: keras.Model) -> keras.Model:
    """Return a model that computes the same with Paceline's kernels and shares its weights.

    Functional and Sequential models of float32 are rewritten layer by layer: convolutions, batch
    normalization together with a sum and a (leaky) ReLU that follow it, SiLU and the sigmoid form
    of GELU after a norm or a bias, and 2x2 max-pooling. Any other model is returned unchanged.

    Example:
        fast = paceline.kernels.accelerate(keras.applications.ResNet50(weights=None))
    """
    ops.load()  # an error comes now, not when the model is first used
    if isinstance(model, keras.Sequential):
        model = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    if not is_graph(model):
        return model
    rewrite = _Rewrite(model)
    return keras.models.clone_model(
        model, clone_function=lambda layer: layer, call_function=rewrite.call
    )


@dataclass(frozen=True)
class _Norm:
    """A norm, the convolution before it if they are computed together, and the inputs of both:
    the images, then the residual if there is one."""

    norm: Any
    conv: Any
    inputs: list[Any]


class _Rewrite:
    """Calls the layers of a model again, on new tensors, some of them replaced.

    A convolution or norm is called at once and remembered. If all that uses it turns out to be a
    norm, a sum or an activation, it is called again together with that; what was called before is
    then not part of the new model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._calls: dict[int, int] = {}
        self._users: dict[int, list[Any]] = {}
        """By layer: the layers that use it, None for the model's outputs."""
        for call in calls_of(model):
            self._calls[id(call.operation)] = self._calls.get(id(call.operation), 0) + 1
            for tensor in call.input_tensors:
                self._add_user(tensor, call.operation)
        for tensor in model.outputs:
            self._add_user(tensor, None)
        self._convs: dict[int, tuple[Any, Any]] = {}
        """By output tensor: a convolution without bias that only one layer uses, and its input."""
        self._biased: dict[int, tuple[Any, Any]] = {}
        """By output tensor: a convolution with a bias that only one layer uses, and its input."""
        self._norms: dict[int, _Norm] = {}
        """By output tensor: a norm that only one layer uses."""
        self._through: dict[int, Any] = {}
        """By tensor: the same, as an output of the convolution that shares it with a sum."""

    def _add_user(self, tensor: Any, user: Any) -> None:
        self._users.setdefault(id(producer_of(tensor)), []).append(user)

    def call(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        if is_graph(operation):  # a model within the model
            return accelerate(operation)(*args, **kwargs)
        once = self._calls.get(id(operation)) == 1
        if once and is_fast_conv(operation):
            return self._conv(operation, args[0])
        if once and _is_fast_norm(operation):
            conv, images = self._convs.get(id(args[0]), (None, args[0]))
            return self._remember(_Norm(operation, conv, [images]), operation)
        if isinstance(operation, layers.Add) and len(args[0]) == 2:
            return self._add(operation, *args[0])
        if is_fast_pool(operation):
            return FastMaxPool2D(operation)(*args)
        if once and is_biased_conv(operation):
            return self._remember_biased(operation, args[0], operation(args[0]))
        if (alpha := swish_alpha(operation)) is not None:
            return self._swish(operation, args[0], alpha)
        slope = _slope(operation)
        if slope is not None and id(args[0]) in self._norms:
            return self._norm(self._norms[id(args[0])], slope, operation.name)
        return operation(*args, **kwargs)

    def _conv(self, conv: Any, images: Any) -> Any:
        output = FastConv2D(conv)(images)
        linear = not conv.use_bias and conv.activation is keras.activations.linear
        if linear and len(self._users[id(conv)]) == 1:
            self._convs[id(output)] = conv, images
        self._remember_biased(conv, images, output)
        return output

    def _add(self, operation: Any, left: Any, right: Any) -> Any:
        """A sum of which one side is a norm that nobody else uses is part of the norm."""
        for one, other in ((left, right), (right, left)):
            known = self._norms.get(id(one))
            if known and len(known.inputs) == 1 and tuple(one.shape) == tuple(other.shape):
                images = known.inputs[0]
                shortcut = other if images is other else self._through.get(id(other), other)
                return self._remember(replace(known, inputs=[images, shortcut]), operation)
        return operation([self._through.get(id(each), each) for each in (left, right)])

    def _remember_biased(self, conv: Any, images: Any, output: Any) -> Any:
        if is_biased_conv(conv) and len(self._users[id(conv)]) == 1:
            self._biased[id(output)] = conv, images
        return output

    def _swish(self, operation: Any, x: Any, alpha: float) -> Any:
        """An activation after a norm without a sum, or after a bias, is computed with it."""
        known = self._norms.get(id(x))
        if known and len(known.inputs) == 1:
            images = known.inputs[0]
            if known.conv:
                self._through.pop(id(images), None)  # it is an output of what is not used now
                images = FastConv2D(known.conv)(images)
            unbiased = isinstance(known.norm, FusedBatchNormalization)
            return FastNormSwish(known.norm, alpha, unbiased, operation.name)(images)
        if id(x) in self._biased:
            conv, images = self._biased[id(x)]
            return FastConvSwish(conv, alpha, operation.name)(images)
        return operation(x)

    def _remember(self, known: _Norm, operation: Any) -> Any:
        output = self._norm(known, 1.0, operation.name)
        if len(self._users[id(operation)]) == 1:
            self._norms[id(output)] = known
        return output

    def _norm(self, known: _Norm, slope: float, name: str) -> Any:
        unbiased = isinstance(known.norm, FusedBatchNormalization)
        inputs = known.inputs if len(known.inputs) > 1 else known.inputs[0]
        if not known.conv:
            return FastBatchNorm(known.norm, slope, unbiased, name)(inputs)
        fork = len(known.inputs) == 1 and self._shares_its_input_with_a_sum(known.conv)
        output = FastConvNorm(known.conv, known.norm, slope, unbiased, fork, name)(inputs)
        if not fork:
            return output
        self._through[id(inputs)] = output[1]
        return output[0]

    def _shares_its_input_with_a_sum(self, conv: Any) -> bool:
        """Whether only this convolution and a sum use its input, as in a block with a shortcut.

        The sum must follow the convolution: it is then called after all that `conv` is part of.
        """
        users = self._users[id(producer_of(conv.input))]
        others = [user for user in users if user is not conv]
        if len(users) != 2 or not isinstance(others[0], layers.Add):
            return False
        following = self._users[id(conv)]
        while len(following) == 1 and following[0] is not None and following[0] is not others[0]:
            following = self._users[id(following[0])]
        return following == others and conv.kernel.shape[2] % 8 == 0


def _is_fast_norm(layer: Any) -> bool:
    return (
        type(layer) in (layers.BatchNormalization, FusedBatchNormalization)
        and layer.compute_dtype == "float32"
        and layer.center
        and layer.axis in (-1, len(layer.input.shape) - 1)
        and layer.input.shape[-1] % 8 == 0
        and not layer.synchronized
    )


def _slope(layer: Any) -> float | None:
    """Return the slope of a (leaky) ReLU below zero; None for any other layer."""
    if isinstance(layer, layers.LeakyReLU):
        return float(layer.negative_slope)
    if isinstance(layer, layers.ReLU) and layer.max_value is None and not layer.threshold:
        return float(layer.negative_slope)
    if isinstance(layer, layers.Activation) and layer.activation is keras.activations.relu:
        return 0.0
    return None
