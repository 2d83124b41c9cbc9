"""Named arrays <-> one flat vector, for any Keras model.

`Template` is what the pure core uses: the model as a function of flat vectors. `Weights` is for
people who have a Keras model of their own, in a Ray actor for example. Names are relative to the
model, so they never depend on what else the process built.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paceline.errors import UserError
from paceline.maths.state import Part
from paceline.models.keras_graph import all_layers


def relative_names(model: keras.Model, variables: list[Any]) -> list[str]:
    """Return a name for each variable: its Keras path, with automatic layer names (dense_7)
    numbered from 0 within the model."""
    automatic = {layer.name for layer in all_layers(model) if _is_automatic(layer)}
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
    return unique([relative(variable.path) for variable in variables])


def _is_automatic(layer: keras.Layer) -> bool:
    """Whether the name is the one that Keras makes of the class: Conv2D -> conv2d,
    BatchNormalization -> batch_normalization."""
    base = re.sub(
        "([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    ).lower()
    return re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name) is not None


def unique(names: list[str]) -> list[str]:
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
    fixed: frozenset[str] = frozenset()
    """Names in `stats` of what no step changes: frozen weights, statistics of frozen BatchNorm."""
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
        frozen: Collection[str] = (),
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Return outputs, the new stats that are not fixed, and extra losses.

        `key`, int64 [2], seeds random layers.
        Variables with names in `frozen` have no gradient, and what only they need is not computed.
        """
        trainable = [
            tf.stop_gradient(piece) if name in frozen else piece
            for piece, (name, _) in zip(_unflatten(params, self.params), self.params, strict=True)
        ]
        floats, seeds = iter(_unflatten(stats, self.stats)), iter(self._seeds(key))
        variables = [v for v in self.model.non_trainable_variables if not _is_counter(v)]
        others = [next(floats) if is_float(v) else next(seeds) for v in variables]
        # As Keras's `stateless_call`, which would expect the variables in the order of `fast`.
        variables = [*self.model.trainable_variables, *variables]
        values = zip(variables, [*trainable, *others], strict=True)
        with keras.StatelessScope(list(values), collect_losses=True) as scope:
            model = self.fast or self.model
            outputs = model.call(images, training=training)
            losses = model.losses
        names = (name for name, _ in self.stats)
        new_stats = [
            tf.reshape(scope.get_current_value(v), [-1])
            for v in self.model.non_trainable_variables
            if is_float(v) and next(names) not in self.fixed
        ]
        moving = tf.concat(new_stats, 0) if new_stats else stats[:0]
        return tf.cast(outputs, tf.float32), moving, losses

    def moving_size(self) -> int:
        """Return how many numbers of `stats` are not fixed."""
        return sum(_sizes(tuple(each for each in self.stats if each[0] not in self.fixed)))

    def merge(self, stats: tf.Tensor, moving: tf.Tensor) -> tf.Tensor:
        """Return `stats` with other numbers in place of those that are not fixed."""
        if not self.fixed:
            return moving
        changing = [each for each in self.stats if each[0] not in self.fixed]
        new = iter(tf.split(moving, _sizes(tuple(changing))) if changing else [])
        pieces = zip(tf.split(stats, _sizes(self.stats)), self.stats, strict=True)
        return tf.concat([old if name in self.fixed else next(new) for old, (name, _) in pieces], 0)

    def keep_fixed(self, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """Return the statistics `new`, with the numbers of `old` where they are fixed: a mean of
        equal numbers may differ from them in the last bit."""
        return self.merge(old, self.moving(new)) if self.fixed else new

    def fixed_mask(self) -> np.ndarray:
        """Return which numbers of `stats` are fixed."""
        each = [np.full(math.prod(shape), name in self.fixed) for name, shape in self.stats]
        return np.concatenate([*each, np.zeros(0, bool)])

    def moving(self, stats: tf.Tensor) -> tf.Tensor:
        """Return the numbers of `stats` that are not fixed."""
        pieces = zip(tf.split(stats, _sizes(self.stats)), self.stats, strict=True)
        return tf.concat([old for old, (name, _) in pieces if name not in self.fixed] or [[]], 0)

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
            "params": flatten(self.model.trainable_variables),
            "stats": flatten([v for v in variables if is_float(v)]),
        }

    def assign(self, params: np.ndarray, stats: np.ndarray) -> None:
        """Put the vectors into the Keras model, for export and prediction."""
        variables = [
            *self.model.trainable_variables,
            *(v for v in self.model.non_trainable_variables if is_float(v)),
        ]
        arrays = [*split(params, self.params), *split(stats, self.stats)]
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
        if not (is_float(variable) or id(variable) in seeds or _is_counter(variable)):
            raise UserError(
                f"the model's variable {name} is {variable.dtype}; only float variables and the "
                "seeds of random layers can be averaged over replicas: make it a float or remove it"
            )
    shapes = [tuple(v.shape) for v in [*trainable, *others]]
    floats = [
        (name, shape)
        for name, shape, v in zip(names, shapes, [*trainable, *others], strict=True)
        if is_float(v)
    ]
    fixed = _fixed_variables(model)
    return Template(
        model,
        tuple(floats[: len(trainable)]),
        tuple(floats[len(trainable) :]),
        sum(id(variable) in seeds for variable in others),
        frozenset(
            name
            for name, variable in zip(names, [*trainable, *others], strict=True)
            if id(variable) in fixed
        ),
        fast,
    )


def _fixed_variables(model: keras.Model) -> set[int]:
    """Return the ids of the variables that no step changes, though they are not trainable."""
    fixed: list[Any] = []
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.Normalization):
            fixed += layer.variables
        elif not layer.trainable:
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            fixed += layer.variables if is_norm else layer._trainable_variables
    return {id(variable) for variable in fixed}


def _is_counter(variable: Any) -> bool:
    """Whether it is the count of a `keras.layers.Normalization`, which no call reads."""
    return "int" in str(variable.dtype) and variable.path.endswith("/count")


def _seed_generators(model: keras.Model) -> list[Any]:
    return [
        generator
        for layer in all_layers(model)
        for generator in getattr(layer, "_seed_generators", [])
    ]


def is_float(variable: Any) -> bool:
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


def split(vector: np.ndarray, part: Part) -> list[np.ndarray]:
    pieces = np.split(vector, np.cumsum(_sizes(part))[:-1])
    return [piece.reshape(shape) for piece, (_, shape) in zip(pieces, part, strict=False)]


def flatten(variables: list[Any]) -> np.ndarray:
    return np.concatenate(
        [np.asarray(v, np.float32).ravel() for v in variables] or [np.zeros(0, np.float32)]
    )
