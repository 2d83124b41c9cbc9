"""Named arrays <-> one flat vector, for any Keras model.

`Template` is what the pure core uses: the model as a function of flat vectors. `Weights` is for
people who have a Keras model of their own, in a Ray actor for example. Names are relative to the
model, so they never depend on what else the process built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.core.state import Part
from paceline.errors import UserError


def relative_names(model: keras.Model, variables: list[Any]) -> list[str]:
    """Return a name for each variable: its Keras path, with automatic layer names (dense_7)
    numbered from 0 within the model."""
    automatic = {layer.name for layer in model._flatten_layers() if _is_automatic(layer)}
    renamed: dict[str, dict[str, str]] = {}  # parent path -> {component: new name}
    counts: dict[tuple[str, str], int] = {}

    def rename(parent: str, component: str) -> str:
        if component not in automatic:
            return component
        known = renamed.setdefault(parent, {})
        if component not in known:
            base = re.sub(r"_\d+$", "", component)
            count = counts[parent, base] = counts.get((parent, base), -1) + 1
            known[component] = f"{base}_{count}" if count else base
        return known[component]

    def relative(path: str) -> str:
        parent = ""
        for component in path.split("/"):
            parent = f"{parent}/{rename(parent, component)}"
        return parent[1:]

    # Count in the order of the layers, whichever of them are asked for or frozen.
    for variable in model.variables:
        relative(variable.path)
    return _unique([relative(variable.path) for variable in variables])


def _is_automatic(layer: keras.Layer) -> bool:
    """Whether the name is the one that Keras makes of the class: Conv2D -> conv2d,
    BatchNormalization -> batch_normalization."""
    base = re.sub(
        "([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    ).lower()
    return re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name) is not None


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    result = []
    for name in names:
        count = seen[name] = seen.get(name, -1) + 1
        result.append(f"{name}:{count}" if count else name)
    return result


@dataclass(frozen=True)
class Template:
    """A Keras model as a pure function of two flat vectors.

    `params` has the trainable variables, `stats` every other float variable.
    """

    model: keras.Model
    params: Part
    stats: Part
    num_seeds: int
    fast: keras.Model | None = None
    """The model on own kernels, which shares the variables of `model`; None for TensorFlow's."""

    @property
    def kernels(self) -> str:
        return "own" if self.fast else "tensorflow"

    def call(
        self,
        params: tf.Tensor,
        stats: tf.Tensor,
        images: tf.Tensor,
        training: bool,
        key: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Return outputs, new stats and extra losses. `key`, int64 [2], seeds random layers."""
        trainable = _unflatten(params, self.params)
        floats, seeds = iter(_unflatten(stats, self.stats)), iter(self._seeds(key))
        others = [
            next(floats) if _is_float(v) else next(seeds)
            for v in self.model.non_trainable_variables
        ]
        # As Keras's `stateless_call`, which would expect the variables in the order of `fast`.
        variables = [*self.model.trainable_variables, *self.model.non_trainable_variables]
        values = zip(variables, [*trainable, *others], strict=True)
        with keras.StatelessScope(list(values), collect_losses=True) as scope:
            model = self.fast or self.model
            outputs = model.call(images, training=training)
            losses = model.losses
        new_stats = [
            tf.reshape(scope.get_current_value(v), [-1])
            for v in self.model.non_trainable_variables
            if _is_float(v)
        ]
        return tf.cast(outputs, tf.float32), tf.concat(new_stats, 0) if new_stats else stats, losses

    def _seeds(self, key: tf.Tensor | None) -> list[tf.Tensor]:
        if not self.num_seeds:
            return []
        if key is None:
            return [tf.zeros([2], tf.uint32)] * self.num_seeds
        shape = [self.num_seeds, 2]
        numbers = tf.random.stateless_uniform(shape, key, None, None, tf.uint32)
        return list(tf.unstack(numbers))

    def initial(self) -> dict[str, np.ndarray]:
        """Return the vectors of the model as it was built."""
        variables = self.model.non_trainable_variables
        return {
            "params": _flatten(self.model.trainable_variables),
            "stats": _flatten([v for v in variables if _is_float(v)]),
        }

    def assign(self, params: np.ndarray, stats: np.ndarray) -> None:
        """Put the vectors into the Keras model, for export and prediction."""
        variables = [
            *self.model.trainable_variables,
            *(v for v in self.model.non_trainable_variables if _is_float(v)),
        ]
        arrays = [*_split(params, self.params), *_split(stats, self.stats)]
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)


def build_template(model: keras.Model, fast: keras.Model | None = None) -> Template:
    """Return the template of a built model; a variable that cannot be averaged is an error."""
    trainable, others = model.trainable_variables, model.non_trainable_variables
    if not trainable:
        raise UserError("the model has no trainable weights; there is nothing to train")
    names = relative_names(model, [*trainable, *others])
    seeds = {id(generator.state) for generator in _seed_generators(model)}
    for variable, name in zip([*trainable, *others], names, strict=True):
        if not _is_float(variable) and id(variable) not in seeds:
            raise UserError(
                f"the model's variable {name} is {variable.dtype}; only float variables and the "
                "seeds of random layers can be averaged over replicas: make it a float or remove it"
            )
    shapes = [tuple(v.shape) for v in [*trainable, *others]]
    floats = [
        (name, shape)
        for name, shape, v in zip(names, shapes, [*trainable, *others], strict=True)
        if _is_float(v)
    ]
    return Template(
        model,
        tuple(floats[: len(trainable)]),
        tuple(floats[len(trainable) :]),
        len(others) + len(trainable) - len(floats),
        fast,
    )


def _seed_generators(model: keras.Model) -> list[Any]:
    return [
        generator
        for layer in model._flatten_layers()
        for generator in getattr(layer, "_seed_generators", [])
    ]


def _is_float(variable: Any) -> bool:
    return "float" in str(variable.dtype)


def _sizes(part: Part) -> list[int]:
    return [math.prod(shape) for _, shape in part]


def _unflatten(vector: tf.Tensor, part: Part) -> list[tf.Tensor]:
    if not part:
        return []
    return [
        tf.reshape(piece, shape)
        for piece, (_, shape) in zip(tf.split(vector, _sizes(part)), part, strict=True)
    ]


def _split(vector: np.ndarray, part: Part) -> list[np.ndarray]:
    pieces = np.split(vector, np.cumsum(_sizes(part))[:-1])
    return [piece.reshape(shape) for piece, (_, shape) in zip(pieces, part, strict=False)]


def _flatten(variables: list[Any]) -> np.ndarray:
    return np.concatenate(
        [np.asarray(v, np.float32).ravel() for v in variables] or [np.zeros(0, np.float32)]
    )


class Weights:
    """Get and set the weights of any built Keras model, as a dictionary of copies or as one flat
    vector.

    With `optimizer=True` the slots of the compiled model's optimizer travel too.
    """

    def __init__(self, model: keras.Model, optimizer: bool = False) -> None:
        if not model.built:
            raise UserError(
                "the model is not built yet; call it once or give it an Input before "
                "paceline.Weights(model)"
            )
        self._variables = list(model.weights)
        names = relative_names(model, self._variables)
        if optimizer:
            if getattr(model, "optimizer", None) is None:
                raise UserError(
                    "optimizer=True needs a compiled model; call model.compile(optimizer=...) first"
                )
            model.optimizer.build(model.trainable_variables)
            slots = [
                v
                for v in model.optimizer.variables
                if _is_float(v) and "learning_rate" not in v.path
            ]
            self._variables += slots
            names += _slot_names(model, slots)
        self._parts: dict[str, tuple[int, ...]] = {
            name: tuple(v.shape) for name, v in zip(names, self._variables, strict=True)
        }

    def get_flat_size(self) -> int:
        """Return the length of the flat vector."""
        return sum(math.prod(shape) for shape in self._parts.values())

    def get_flat(self) -> np.ndarray:
        """Return all weights as one float32 vector."""
        return _flatten(self._variables)

    def set_flat(self, vector: np.ndarray) -> None:
        """Set all weights from a vector like that of `get_flat`."""
        vector = np.asarray(vector)
        if vector.shape != (self.get_flat_size(),):
            raise UserError(
                f"set_flat got shape {vector.shape}; this model needs ({self.get_flat_size()},)"
            )
        part = tuple(self._parts.items())
        for variable, piece in zip(self._variables, _split(vector, part), strict=True):
            variable.assign(piece)

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return a copy of each weight by name."""
        return {
            name: variable.numpy().copy()
            for name, variable in zip(self._parts, self._variables, strict=True)
        }

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set all weights by name. If a name or shape is wrong, nothing is changed."""
        if weights.keys() != self._parts.keys():
            odd = sorted(weights.keys() ^ self._parts.keys())[0]
            problem = "unknown to the model" if odd in weights else "missing"
            raise UserError(
                f"set_weights: {odd!r} is {problem}; names must be those of get_weights"
            )
        arrays = {name: np.asarray(weights[name]) for name in self._parts}
        for name, shape in self._parts.items():
            if arrays[name].shape != shape:
                raise UserError(
                    f"set_weights: {name!r} has shape {arrays[name].shape}; the model has {shape}"
                )
            if arrays[name].dtype.kind in "OSUmM":
                raise UserError(
                    f"set_weights: {name!r} does not contain numbers: it has type "
                    f"{arrays[name].dtype}"
                )
        for array, variable in zip(arrays.values(), self._variables, strict=True):
            variable.assign(array)


def _slot_names(model: keras.Model, slots: list[Any]) -> list[str]:
    """optimizer/<weight name>/<kind of slot>: Keras names a slot after the path of its weight,
    dense_7_kernel_momentum."""
    weights = model.trainable_variables
    paths = {
        v.path.replace("/", "_"): name
        for v, name in zip(weights, relative_names(model, weights), strict=True)
    }
    names = []
    for slot in slots:
        path = max(
            (path for path in paths if slot.name.startswith(f"{path}_")), key=len, default=""
        )
        own = (
            f"{paths[path]}/{slot.name[len(path) + 1 :]}"
            if path
            else re.sub(r"_\d+$", "", slot.name)
        )
        names.append(f"optimizer/{own}")
    return _unique(names)
