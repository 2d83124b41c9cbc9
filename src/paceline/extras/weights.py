"""The weights of a Keras model as named arrays or as one flat vector: `paceline.Weights`.

It is for people who have a Keras model themselves, in an actor for example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import keras
import numpy as np

from paceline.errors import UserError
from paceline.maths.template import flatten, is_float, split
from paceline.models.keras_graph import relative_names


class Weights:
    """Get and set the weights of any built Keras model, as a dictionary of copies or as one flat
    vector.

    With `optimizer=True` the slots of the compiled model's optimizer travel too, as optimizer/0 ...
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
            own = [v for v in model.optimizer.variables if "learning_rate" not in v.path]
            slots = [variable for variable in own if is_float(variable)]
            self._variables += slots
            names += [f"optimizer/{i}" for i in range(len(slots))]
        self._parts: dict[str, tuple[int, ...]] = {
            name: tuple(v.shape) for name, v in zip(names, self._variables, strict=True)
        }

    def get_flat_size(self) -> int:
        """Return the length of the flat vector."""
        return sum(math.prod(shape) for shape in self._parts.values())

    def get_flat(self) -> np.ndarray:
        """Return all weights as one float32 vector."""
        return flatten(self._variables)

    def set_flat(self, vector: np.ndarray) -> None:
        """Set all weights from a vector like that of `get_flat`."""
        vector = np.asarray(vector)
        if vector.shape != (self.get_flat_size(),):
            raise UserError(
                f"set_flat got shape {vector.shape}; this model needs ({self.get_flat_size()},)"
            )
        pieces = split(vector, tuple(self._parts.items()))
        for variable, piece in zip(self._variables, pieces, strict=True):
            variable.assign(piece)

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return a copy of each weight by name."""
        pairs = zip(self._parts, self._variables, strict=True)
        return {name: variable.numpy().copy() for name, variable in pairs}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set all weights by name. If a name or shape is wrong, nothing is changed."""
        for name in sorted(weights.keys() ^ self._parts.keys()):
            problem = "unknown to the model" if name in weights else "missing"
            names = "names must be those of get_weights"
            raise UserError(f"set_weights: {name!r} is {problem}; {names}")
        arrays = {name: np.asarray(weights[name]) for name in self._parts}
        for name, shape in self._parts.items():
            found = arrays[name]
            if found.shape != shape:
                raise UserError(
                    f"set_weights: {name!r} has shape {found.shape}; the model has {shape}"
                )
            if found.dtype.kind in "OSUmM":
                raise UserError(f"set_weights: {name!r} contains {found.dtype}, not numbers")
        for array, variable in zip(arrays.values(), self._variables, strict=True):
            variable.assign(array)
