"""The weights of a Keras model as named arrays or as one flat vector: `paceline.Weights`.

It is for people who have a Keras model themselves, in an actor for example.
"""

import math
from collections.abc import Mapping
from functools import cached_property

import keras
import numpy as np

from paceline.errors import UserError
from paceline.maths.template import flatten, is_float, split
from paceline.models.keras_graph import relative_names


class Weights:
    """Get and set the weights of any Keras model, as a dictionary of copies or as one flat vector.

    The model may be built later, before the first use. With `optimizer=True`, the state of the
    compiled model's optimizer is included, as optimizer/0 ..."""

    def __init__(self, model: keras.Model, optimizer: bool = False) -> None:
        if optimizer and getattr(model, "optimizer", None) is None:
            raise UserError(
                "optimizer=True needs a compiled model; call model.compile(optimizer=...) first"
            )
        self._model, self._optimizer = model, optimizer

    @cached_property
    def variables(self) -> dict[str, keras.Variable]:
        """The variables themselves by name, in the order of the flat vector."""
        model = self._model
        if not model.built:
            raise UserError(
                "the model is not built yet; call it once, or give it an Input, before its weights "
                "are used"
            )
        found = dict(zip(relative_names(model, model.weights), model.weights, strict=True))
        if self._optimizer:
            model.optimizer.build(model.trainable_variables)
            own = [v for v in model.optimizer.variables if "learning_rate" not in v.path]
            slots = [variable for variable in own if is_float(variable)]
            found |= {f"optimizer/{i}": slot for i, slot in enumerate(slots)}
        return found

    @property
    def _parts(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(variable.shape) for name, variable in self.variables.items()}

    def get_flat_size(self) -> int:
        """Return the length of the flat vector."""
        return sum(math.prod(shape) for shape in self._parts.values())

    def get_flat(self) -> np.ndarray:
        """Return all weights as one float32 vector."""
        return flatten(list(self.variables.values()))

    def set_flat(self, vector: np.ndarray) -> None:
        """Set all weights from one vector, such as `get_flat` returns."""
        vector = np.asarray(vector)
        if vector.shape != (self.get_flat_size(),):
            raise UserError(
                f"set_flat got shape {vector.shape}; this model needs ({self.get_flat_size()},)"
            )
        pieces = split(vector, tuple(self._parts.items()))
        for variable, piece in zip(self.variables.values(), pieces, strict=True):
            variable.assign(piece)

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return a copy of each weight by name."""
        return {name: variable.numpy().copy() for name, variable in self.variables.items()}

    def set_weights(self, weights: Mapping[str, np.ndarray], partial: bool = False) -> None:
        """Set all weights by name. With `partial`, `weights` may leave some out.

        If a name or shape is wrong, nothing is changed.
        """
        parts = {n: shape for n, shape in self._parts.items() if n in weights or not partial}
        for name in sorted(weights.keys() ^ parts.keys()):
            problem = "unknown to the model" if name in weights else "missing"
            names = "names must be those of get_weights"
            raise UserError(f"set_weights: {name!r} is {problem}; {names}")
        arrays = {name: np.asarray(weights[name]) for name in parts}
        for name, shape in parts.items():
            own = arrays[name]
            if own.shape != shape:
                raise UserError(f"set_weights: {name!r} has shape {own.shape}; it needs {shape}")
            if own.dtype.kind in "OSUmM":
                raise UserError(f"set_weights: {name!r} contains {own.dtype}, not numbers")
        for name, array in arrays.items():
            self.variables[name].assign(array)
