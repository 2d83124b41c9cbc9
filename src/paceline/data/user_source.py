"""Checks a source of the user's own (`data.build`) before anything is trained on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from paceline.data.digests import digest_of, spread
from paceline.data.source import Source, Split
from paceline.errors import UserError


def check_source(source: Any, spec: str) -> Source:
    """Return the source, with a digest. Raise UserError if it cannot be used."""
    _check_facts(source, spec)
    pieces: list[bytes] = []
    for name, split in (("train", source.train), ("test", source.test)):
        if not isinstance(split, Split):
            raise UserError(
                f"{spec}: {name} is a {type(split).__name__}; it must be a paceline.Split"
            )
        if not isinstance(split.size, int) or split.size < 1:
            raise UserError(
                f"{spec}: the {name} split has size {split.size!r}; it must be a whole number "
                "above 0"
            )
        pieces += _check_examples(source, split, f"{spec}: read of the {name} split")
    checked: Source = replace(source, digest=source.digest or digest_of(pieces))
    return checked


def _check_facts(source: Any, spec: str) -> None:
    if not isinstance(source, Source):
        raise UserError(
            f"{spec} returned a {type(source).__name__}; it must return a paceline.Source"
        )
    classes, shape = source.classes, source.image_shape
    is_tuple = isinstance(classes, tuple | list) and len(classes) > 0
    if not is_tuple or not all(isinstance(name, str) for name in classes):
        raise UserError(f"{spec}: classes is {classes!r}; it must be a tuple of one name per class")
    if shape is not None and not (
        len(shape) == 3 and all(isinstance(side, int) and side > 0 for side in shape)
    ):
        raise UserError(
            f"{spec}: image_shape is {shape!r}; it must be (height, width, channels), or None for "
            "encoded images"
        )


def _check_examples(source: Source, split: Split, what: str) -> list[bytes]:
    """Read some examples from the first to the last, compiled as in training; return their
    bytes."""
    chosen = spread(split.size)
    try:
        raw, labels = tf.function(split.read)(tf.constant(chosen, tf.int64))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1].strip()
        raise UserError(
            f"{what} failed in a compiled step (use TensorFlow ops only): "
            f"{type(error).__name__}: {reason}"
        ) from error
    _check_tensors(source, raw, labels, len(chosen), what)
    for index, label in zip(chosen, labels.numpy().tolist(), strict=True):
        if not 0 <= label < len(source.classes):
            allowed = f"labels are 0 to {len(source.classes) - 1}"
            raise UserError(f"{what} gave label {label} for example {index}; {allowed}")
    images = raw.numpy()
    strings = images.tolist() if source.image_shape is None else [images.tobytes()]
    return [*strings, labels.numpy().tobytes()]


def _check_tensors(
    source: Source, raw: tf.Tensor, labels: tf.Tensor, count: int, what: str
) -> None:
    dtype = tf.string if source.image_shape is None else tf.uint8
    shape = (count, *(source.image_shape or ()))
    if (raw.dtype, tuple(raw.shape)) != (dtype, shape):
        raise UserError(
            f"{what} gave {raw.dtype.name} {tuple(raw.shape)}; it must be {dtype.name} {shape}"
        )
    if labels.dtype != tf.int32 or tuple(labels.shape) != (count,):
        raise UserError(
            f"{what} gave labels {labels.dtype.name} {tuple(labels.shape)}; they must be int32 "
            f"({count},)"
        )
