"""Layers that are not trained (`model.freeze`): their weights stay as they are, and their BatchNorm
normalizes with its stored statistics."""

from __future__ import annotations

from fnmatch import fnmatchcase

import keras

from paceline.errors import UserError, did_you_mean

BACKBONE = "backbone"
"""All layers before the last one with weights."""
RANGE = ".."


def freeze_layers(model: keras.Model, specs: tuple[str, ...]) -> None:
    """Mark the layers that `specs` name as not trainable."""
    for spec in specs:
        for layer in _find_layers(model, spec):
            layer.trainable = False
    if specs and not model.trainable_variables:
        raise UserError(
            f"model.freeze {' '.join(specs)} leaves nothing to train; leave out the last layer, as "
            f"{BACKBONE} does"
        )


def _find_layers(model: keras.Model, spec: str) -> list[keras.Layer]:
    layers: list[keras.Layer] = model.layers
    names = [layer.name for layer in layers]
    if spec == BACKBONE:
        last = max(index for index, layer in enumerate(layers) if layer.weights)
        return layers[:last]
    if RANGE not in spec:
        return [layers[index] for index in _indices(names, spec)]
    start, _, stop = spec.partition(RANGE)
    first = _indices(names, start)[0] if start else 0
    last = _indices(names, stop)[-1] if stop else len(layers) - 1
    if first > last:
        raise UserError(f"model.freeze {spec}: {start} comes after {stop} in the model")
    return layers[first : last + 1]


def _indices(names: list[str], pattern: str) -> list[int]:
    """Return the layers that a pattern means: stage1 includes stage1_block1_conv1, not stage10."""
    found = [index for index, name in enumerate(names) if _fits(name, pattern)]
    if not found:
        near = did_you_mean(pattern, names)
        raise UserError(f"model.freeze: no layer is called {pattern} or begins so; {near}")
    return found


def _fits(name: str, pattern: str) -> bool:
    rest = name.removeprefix(pattern)
    begins = rest != name and not (rest[:1].isdigit() and pattern[-1:].isdigit())
    return begins or fnmatchcase(name, pattern)
