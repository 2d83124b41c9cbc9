"""A Keras model as a pure function of flat vectors."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import keras
import numpy as np
import tensorflow as tf

from paceline.errors import UserError
from paceline.kernels import ops
from paceline.kernels.library import ARITHMETIC
from paceline.maths.state import Part
from paceline.models.accelerate import computed_by_tensorflow
from paceline.models.keras_graph import all_layers, own_trainable, relative_names, seed_generators


@dataclass(frozen=True)
class Template:
    """`params` has the trainable variables of the model, `stats` every other float variable."""

    model: keras.Model
    params: Part
    stats: Part
    num_seeds: int
    fixed: frozenset[str] = frozenset()
    """Names in `stats` of what no step changes: frozen weights, statistics of frozen BatchNorm."""
    fast: keras.Model | None = None
    """The model on Paceline's kernels, which shares the variables of `model`, if it is used."""
    bfloat16: bool = False
    """Whether images between its layers are bfloat16."""

    @property
    def kernels(self) -> str:
        """Return whose kernels compute the model."""
        return "own" if self.fast else "tensorflow"

    @cached_property
    def foreign(self) -> tuple[str, ...]:
        """What TensorFlow computes, so that the bits depend on the kind of CPU."""
        return tuple(sorted(computed_by_tensorflow(self.fast) if self.fast else {"the model"}))

    @property
    def bits(self) -> str:
        """Return where the bits are the same, for people."""
        if not self.foreign:
            return f"any CPU (arithmetic {ARITHMETIC})"
        more = f" and {len(self.foreign) - 3} more" if len(self.foreign) > 3 else ""
        return f"this kind of CPU, because TensorFlow computes {', '.join(self.foreign[:3])}{more}"

    def call(
        self,
        params: tf.Tensor,
        stats: tf.Tensor,
        images: tf.Tensor,
        training: bool,
        key: tf.Tensor | None = None,
        frozen: Collection[str] = (),
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Return outputs, the new stats that are not fixed, and extra losses. `key`, int64 [2],
        seeds random layers. What only the gradients of `frozen` variables need is not computed."""
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
        scope = keras.StatelessScope(list(values), collect_losses=True)
        with scope, ops.within(ops.in_bfloat16, self.bfloat16):
            model = self.fast or self.model
            outputs = model.call(images, training=training)
            losses = model.losses
        new_stats = [
            tf.reshape(scope.get_current_value(variable), [-1])
            for variable, (name, _) in zip(self._statistics(), self.stats, strict=True)
            if name not in self.fixed
        ]
        moving = tf.concat(new_stats, 0) if new_stats else stats[:0]
        return tf.cast(outputs, tf.float32), moving, losses

    def _statistics(self) -> list[keras.Variable]:
        return [v for v in self.model.non_trainable_variables if is_float(v)]

    def moving_size(self) -> int:
        """Return how many numbers of `stats` are not fixed."""
        return int((~self.fixed_mask()).sum())

    def fixed_mask(self) -> np.ndarray:
        """Return which numbers of `stats` are fixed."""
        masks = [np.full(math.prod(shape), name in self.fixed) for name, shape in self.stats]
        return np.concatenate([*masks, np.zeros(0, bool)])

    def merge(self, stats: tf.Tensor, moving: tf.Tensor) -> tf.Tensor:
        """Return `stats` with `moving` in place of the numbers that are not fixed."""
        if not self.fixed:
            return moving
        indices = np.flatnonzero(~self.fixed_mask())
        return tf.tensor_scatter_nd_update(stats, indices[:, None], moving)

    def keep_fixed(self, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """Return the statistics `new`, with the numbers of `old` where they are fixed: a mean of
        equal numbers may differ from them in the last bit."""
        return tf.where(self.fixed_mask(), old, new) if self.fixed else new

    def _seeds(self, key: tf.Tensor | None) -> list[tf.Tensor]:
        if not self.num_seeds:
            return []
        if key is None:
            return [tf.zeros([2], tf.uint32)] * self.num_seeds
        shape = [self.num_seeds, 2]
        return list(tf.unstack(tf.random.stateless_uniform(shape, key, None, None, tf.uint32)))

    def initial(self) -> dict[str, np.ndarray]:
        """Return the vectors of the model as it was built."""
        params = flatten(self.model.trainable_variables)
        return {"params": params, "stats": flatten(self._statistics())}

    def assign(self, params: np.ndarray, stats: np.ndarray) -> None:
        """Put the vectors into the Keras model, for export and prediction."""
        variables = [*self.model.trainable_variables, *self._statistics()]
        arrays = [*split(params, self.params), *split(stats, self.stats)]
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)


def build_template(
    model: keras.Model, fast: keras.Model | None = None, bfloat16: bool = False
) -> Template:
    """Return the template of a built model; a variable that cannot be averaged is an error."""
    if not model.trainable_variables:
        raise UserError("the model has no trainable weights; there is nothing to train")
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    names = dict(zip(map(id, variables), relative_names(model, variables), strict=True))
    seeds = {id(generator.state) for generator in seed_generators(model)}
    for variable in variables:
        if not (is_float(variable) or id(variable) in seeds or _is_counter(variable)):
            raise UserError(
                f"the model's variable {names[id(variable)]} is {variable.dtype}; only float "
                "variables and the seeds of random layers can be averaged over replicas: make it a "
                "float or remove it"
            )

    def part_of(some: list[keras.Variable]) -> Part:
        return tuple((names[id(v)], tuple(v.shape)) for v in some if is_float(v))

    return Template(
        model,
        part_of(model.trainable_variables),
        part_of(model.non_trainable_variables),
        sum(id(variable) in seeds for variable in model.non_trainable_variables),
        frozenset(names[each] for each in _fixed_variables(model) if each in names),
        fast,
        bfloat16,
    )


def _fixed_variables(model: keras.Model) -> set[int]:
    """Return the ids of the variables outside `params` that no step changes."""
    fixed: list[keras.Variable] = []
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.Normalization):
            fixed += layer.variables
        elif not layer.trainable:
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            fixed += layer.variables if is_norm else own_trainable(layer)
    return {id(variable) for variable in fixed}


def _is_counter(variable: keras.Variable) -> bool:
    """Return whether it is the count of a `keras.layers.Normalization`, which no call reads."""
    return "int" in str(variable.dtype) and variable.path.endswith("/count")


def is_float(variable: keras.Variable) -> bool:
    """Return whether the numbers of a variable can be averaged."""
    return "float" in str(variable.dtype)


def _unflatten(vector: tf.Tensor, part: Part) -> list[tf.Tensor]:
    pieces = tf.split(vector, [math.prod(shape) for _, shape in part]) if part else []
    return [tf.reshape(piece, shape) for piece, (_, shape) in zip(pieces, part, strict=True)]


def split(vector: np.ndarray, part: Part) -> list[np.ndarray]:
    """Return the arrays of a vector."""
    pieces = np.split(vector, np.cumsum([math.prod(shape) for _, shape in part])[:-1])
    return [piece.reshape(shape) for piece, (_, shape) in zip(pieces, part, strict=False)]


def flatten(variables: list[keras.Variable]) -> np.ndarray:
    """Return the vector of some variables."""
    arrays = [np.asarray(variable, np.float32).ravel() for variable in variables]
    return np.concatenate([np.zeros(0, np.float32), *arrays])
