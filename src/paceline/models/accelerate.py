"""Rewrites a Keras model to use Paceline's kernels, with the same weights.

What the kernels cannot compute stays as it is.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import KerasTensor as Tensor

from paceline.kernels import ops
from paceline.models import fast_layers as layers
from paceline.models.fast_functions import Fast, is_fast
from paceline.models.keras_graph import calls_of, is_graph, producer_of


def accelerate(model: keras.Model) -> keras.Model:
    """Return a model that computes the same with Paceline's kernels and shares its weights.

    Functional and Sequential models of float32 are rewritten layer by layer: convolutions, batch
    normalization together with a sum and a (leaky) ReLU that follow it, SiLU and the sigmoid form
    of GELU, dense layers, pooling and sums. Any other model is returned unchanged.

    Example:
        fast = paceline.accelerate(keras.applications.ResNet50(weights=None))
    """
    ops.load()  # an error comes now, not when the model is first used
    if isinstance(model, keras.Sequential):
        model = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    if not is_graph(model):
        return model
    call = _Rewrite(model).call
    return keras.models.clone_model(model, clone_function=lambda each: each, call_function=call)


FIXED = {
    *("paceline.Fast", "paceline.FastConv2D", "paceline.FastNorm", "paceline.Fork"),
    *("paceline.SwishConv2D", "paceline.SwishNorm"),
    *("keras.InputLayer", "keras.Flatten", "keras.Reshape", "keras.Permute", "keras.Concatenate"),
    *("keras.Pad", "keras.ZeroPadding2D", "keras.Cropping2D", "keras.GetItem"),
}
"""Package and type of operations with the same bits on any CPU."""


def computed_by_tensorflow(model: keras.Model) -> set[str]:
    """Return what TensorFlow computes in an accelerated model: its bits depend on the CPU."""
    if not is_graph(model):
        return {type(model).__name__}
    found = {"regularizers or other losses of layers"} if model.losses else set[str]()
    for operation in (call.operation for call in calls_of(model)):
        kind = type(operation)
        if is_graph(operation):
            found |= computed_by_tensorflow(operation)
        elif f"{kind.__module__.split('.')[0]}.{kind.__name__}" not in FIXED:
            found.add(kind.__name__)
        elif activation := layers.foreign_activation(operation):
            found.add(activation)
    return found


@dataclass(frozen=True)
class _Norm:
    """A norm, the convolution before it if they are computed together, and the inputs of both:
    the images, then the residual if there is one."""

    norm: keras.Layer
    conv: keras.Layer
    inputs: list[Tensor]


class _Rewrite:
    """Calls the layers of a model again, on new tensors, some of them replaced. A convolution
    or norm is called at once and remembered. If all that uses it turns out to be a norm, a sum
    or an activation, it is called again together with that; what was called before is then not
    part of the new model.
    """

    def __init__(self, model: keras.Model) -> None:
        calls = calls_of(model)
        self._calls = Counter(id(call.operation) for call in calls)
        self._users: dict[int, list[keras.Layer | None]] = defaultdict(list)
        """By layer: the layers that use it, None for the model's outputs."""
        uses = [(tensor, call.operation) for call in calls for tensor in call.input_tensors]
        for tensor, user in [*uses, *((tensor, None) for tensor in model.outputs)]:
            self._users[id(producer_of(tensor))].append(user)
        self._convs: dict[int, tuple[keras.Layer, Tensor]] = {}
        """By output tensor: a convolution that only one layer uses, and its input."""
        self._norms: dict[int, _Norm] = {}
        """By output tensor: a norm that only one layer uses."""
        self._forks: dict[int, list[Tensor]] = {}
        """By tensor: its copies that are not used yet."""
        self._through: dict[int, Tensor] = {}
        """By tensor: the same, as an output of the convolution that shares it with a sum."""

    def call(self, operation: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        output = self._call(operation, *keras.tree.map_structure(self._take, args), **kwargs)
        users = self._users[id(operation)]
        if len(users) > 1 and not any(self._shares_input(each) for each in users):
            self._forks[id(output)] = layers.Fork(len(users), f"{operation.name}_fork")(output)
        return output

    def _take(self, tensor: Tensor) -> Tensor:
        """Return a copy of its own for each user of a tensor, if it has several."""
        return self._forks[id(tensor)].pop(0) if id(tensor) in self._forks else tensor

    def _call(self, operation: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        if is_graph(operation):  # a model within the model
            return accelerate(operation)(*args, **kwargs)
        if isinstance(operation, keras.layers.Add) and len(args[0]) == 2:
            return self._add(operation, *args[0])
        if self._calls[id(operation)] == 1:
            if layers.is_fast_conv(operation):
                return self._conv(operation, args[0])
            if layers.is_fast_norm(operation):
                conv, images = self._convs.get(id(args[0]), (None, None))
                if not layers.is_linear_conv(conv):
                    conv, images = None, args[0]
                return self._remember(_Norm(operation, conv, [images]), operation)
        if (alpha := layers.swish_alpha(operation)) is not None:
            return self._swish(operation, args[0], alpha)
        slope = layers.relu_slope(operation)
        if slope is not None and id(args[0]) in self._norms:
            return self._norm(self._norms[id(args[0])], slope, operation.name)
        if is_fast(operation):
            return Fast(operation)(*args)
        return operation(*args, **kwargs)

    def _conv(self, conv: keras.Layer, images: Tensor) -> Tensor:
        output = layers.FastConv2D(conv)(images)
        if len(self._users[id(conv)]) == 1:
            self._convs[id(output)] = conv, images
        return output

    def _add(self, operation: keras.Layer, left: Tensor, right: Tensor) -> Tensor:
        """A sum of which one side is a norm that nobody else uses is part of the norm."""
        for one, other in ((left, right), (right, left)):
            known = self._norms.get(id(one))
            if known and len(known.inputs) == 1 and tuple(one.shape) == tuple(other.shape):
                images = known.inputs[0]
                shortcut = other if images is other else self._through.get(id(other), other)
                return self._remember(replace(known, inputs=[images, shortcut]), operation)
        inputs = [self._through.get(id(each), each) for each in (left, right)]
        return (Fast(operation) if is_fast(operation) else operation)(inputs)

    def _swish(self, operation: keras.Layer, x: Tensor, alpha: float) -> Tensor:
        """An activation after a norm without a sum, or after a bias, is computed with it."""
        from paceline.models import fast_swish

        known = self._norms.get(id(x))
        if known and len(known.inputs) == 1:
            images = known.inputs[0]
            if known.conv:
                self._through.pop(id(images), None)  # it is an output of what is not used now
                images = layers.FastConv2D(known.conv)(images)
            return fast_swish.SwishNorm(known.norm, operation.name, alpha)(images)
        conv, images = self._convs.get(id(x), (None, None))
        if layers.is_linear_conv(conv, use_bias=True):
            return fast_swish.SwishConv2D(conv, operation.name, alpha)(images)
        return (Fast(operation) if is_fast(operation) else operation)(x)

    def _remember(self, known: _Norm, operation: keras.Layer) -> Tensor:
        output = self._norm(known, 1.0, operation.name)
        if len(self._users[id(operation)]) == 1:
            self._norms[id(output)] = known
        return output

    def _norm(self, known: _Norm, slope: float, name: str) -> Tensor:
        inputs = known.inputs if len(known.inputs) > 1 else known.inputs[0]
        fork = bool(known.conv) and len(known.inputs) == 1 and self._shares_input(known.conv)
        output = layers.FastNorm(known.norm, name, slope, known.conv, fork)(inputs)
        if not fork:
            return output
        self._through[id(inputs)] = output[1]
        return output[0]

    def _shares_input(self, conv: keras.Layer) -> bool:
        """Whether only this convolution and a sum use its input, as in a block with a shortcut.

        The sum must follow the convolution: it is then called after all that `conv` is part of.
        """
        if not layers.is_linear_conv(conv):
            return False
        users = self._users[id(producer_of(conv.input))]
        others = [user for user in users if user is not conv]
        if len(users) != 2 or not isinstance(others[0], keras.layers.Add):
            return False
        following = self._users[id(conv)]
        while len(following) == 1 and following[0] is not None and following[0] is not others[0]:
            if layers.swish_alpha(following[0]) is not None:  # not computed with the convolution
                return False
            following = self._users[id(following[0])]
        return following == others and conv.kernel.shape[2] % 8 == 0
