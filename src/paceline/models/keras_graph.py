"""The graph of a Keras model: its calls, its layers, and stable names for its variables.

Keras has no public API for the first two. This is the only file that uses its private attributes,
and `tests/models/test_keras_graph.py` fails clearly if a new version of Keras changes them.
"""

import re
from collections import Counter
from typing import Any

import keras


def is_graph(operation: keras.Operation) -> bool:
    """Return whether it is a functional model. A subclass with its own `call` is not."""
    return hasattr(operation, "_nodes_by_depth")


def calls_of(model: keras.Model) -> list[Any]:
    """Return each call of a layer, inputs first, with `operation`, `input_tensors`, `outputs` and
    `parent_nodes`. Empty for a model that is not a graph."""
    by_depth = getattr(getattr(model, "_functional", model), "_nodes_by_depth", None) or {}
    return [call for depth in sorted(by_depth, reverse=True) for call in by_depth[depth]]


def producer_of(tensor: keras.KerasTensor) -> keras.Operation:
    """Return the layer or operation whose output a symbolic tensor is."""
    return tensor._keras_history.operation


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Return the model and all its layers, with the layers inside of layers."""
    return list(model._flatten_layers())


def seed_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Return the generators that seed the random layers of a model."""
    return [each for layer in all_layers(model) for each in getattr(layer, "_seed_generators", [])]


def own_trainable(layer: keras.Layer) -> list[keras.Variable]:
    """Return the variables that a layer itself would train if it were not frozen."""
    return list(layer._trainable_variables)


def relative_names(model: keras.Model, variables: list[keras.Variable]) -> list[str]:
    """Return a name for each variable that does not depend on what else the process built: its
    Keras path, with automatic layer names (dense_7) numbered from 0 within the model."""
    automatic = {layer.name for layer in all_layers(model) if _is_automatic(layer)}
    renamed: dict[tuple[str, str], str] = {}
    """(path of the parent, automatic name) -> new name"""
    counts: Counter[tuple[str, str]] = Counter()

    def relative(path: str) -> str:
        parent = ""
        for name in path.split("/"):
            if name in automatic and (parent, name) not in renamed:
                base = re.sub(r"_\d+$", "", name)
                count = counts[parent, base]
                counts[parent, base] += 1
                renamed[parent, name] = f"{base}_{count}" if count else base
            parent = f"{parent}/{renamed.get((parent, name), name)}"
        return parent[1:]

    # Count in the order of the layers, whichever of them are asked for or frozen.
    for variable in model.variables:
        relative(variable.path)
    return unique([relative(variable.path) for variable in variables])


def _is_automatic(layer: keras.Layer) -> bool:
    """Return whether the name is the one that Keras makes of the class: Conv2D -> conv2d,
    BatchNormalization -> batch_normalization."""
    words = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    base = re.sub("([a-z])([A-Z])", r"\1_\2", words).lower()
    return re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name) is not None


def unique(names: list[str]) -> list[str]:
    """Return the names with a number after each that occurred before."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        result.append(f"{name}:{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return result
