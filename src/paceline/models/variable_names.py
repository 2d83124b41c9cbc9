"""Names for the variables of a Keras model that never depend on what else the process built."""

from __future__ import annotations

import re
from typing import Any

import keras

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
    """Return whether the name is the one that Keras makes of the class: Conv2D -> conv2d,
    BatchNormalization -> batch_normalization."""
    base = re.sub(
        "([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    ).lower()
    return re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name) is not None


def unique(names: list[str]) -> list[str]:
    """Return the names with a number after each that occurred before."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        count = seen[name] = seen.get(name, -1) + 1
        result.append(f"{name}:{count}" if count else name)
    return result
