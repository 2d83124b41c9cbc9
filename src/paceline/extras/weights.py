"""The weights of a Keras model as named arrays or as one flat vector: `paceline.Weights`.

It is for people who have a Keras model themselves, in an actor for example.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from paceline.errors import UserError
from paceline.maths.template import flatten, is_float, split
from paceline.models.keras_graph import relative_names, unique


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
                if is_float(v) and "learning_rate" not in v.path
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
        return flatten(self._variables)

    def set_flat(self, vector: np.ndarray) -> None:
        """Set all weights from a vector like that of `get_flat`."""
        vector = np.asarray(vector)
        if vector.shape != (self.get_flat_size(),):
            raise UserError(
                f"set_flat got shape {vector.shape}; this model needs ({self.get_flat_size()},)"
            )
        part = tuple(self._parts.items())
        for variable, piece in zip(self._variables, split(vector, part), strict=True):
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
    return unique(names)
