"""The graph of a Keras model: its calls, and which layer produced a tensor.

Keras has no public API for it. This is the only file that uses its private attributes, and
`tests/models/test_keras_graph.py` fails clearly if a new version of Keras changes them.
"""

from __future__ import annotations

from typing import Any

import keras


def is_graph(operation: Any) -> bool:
    """Return whether it is a functional model. A subclass with its own `call` is not."""
    return hasattr(operation, "_nodes_by_depth")


def calls_of(model: keras.Model) -> list[Any]:
    """Return each call of a layer, inputs first, with `operation`, `input_tensors`, `outputs` and
    `parent_nodes`. Empty for a model that is not a graph."""
    by_depth = getattr(getattr(model, "_functional", model), "_nodes_by_depth", None) or {}
    return [call for depth in sorted(by_depth, reverse=True) for call in by_depth[depth]]


def producer_of(tensor: Any) -> Any:
    """Return the layer or operation whose output a symbolic tensor is."""
    return tensor._keras_history.operation


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Return the model and all its layers, with the layers inside of layers."""
    return list(model._flatten_layers())


def seed_generators(model: keras.Model) -> list[Any]:
    """Return the generators that seed the random layers of a model."""
    return [each for layer in all_layers(model) for each in getattr(layer, "_seed_generators", [])]


def own_trainable(layer: keras.Layer) -> list[Any]:
    """Return the variables that a layer itself would train if it were not frozen."""
    return list(layer._trainable_variables)
