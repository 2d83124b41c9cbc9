"""Checks a source of the user's own (`data.build`) before anything is trained on it."""

from dataclasses import replace

import tensorflow as tf

from paceline.data.digests import digest_of, spread
from paceline.data.source import Source, Split
from paceline.errors import UserError
from paceline.experiment.data import Data
from paceline.experiment.user_code import load_function


def build_user_source(data: Data) -> Source:
    """Return what the function `data.build` returns, with a digest, if it can be used."""
    return check_source(load_function(data.build)(data), data.build)


def check_source(source: object, spec: str) -> Source:
    """Return the source, with a digest. Raise UserError if it cannot be used."""
    given = f"{spec} returned a {type(source).__name__}"
    if not isinstance(source, Source):
        raise UserError(f"{given}; it must return a paceline.Source")
    named = all(isinstance(name, str) for name in source.classes)
    _require(named, f"{spec}: classes is {source.classes!r}; it must be a tuple of names")
    pieces: list[bytes] = []
    splits = {"train": source.train, "test": source.test}
    own = {"validation": source.validation} if source.validation else {}
    for name, split in (splits | own).items():
        given = f"{spec}: {name} is a {type(split).__name__}"
        _require(isinstance(split, Split), f"{given}; it must be a paceline.Split")
        _require(
            isinstance(split.size, int) and split.size > 0,
            f"{spec}: the {name} split has size {split.size!r}; it must be a whole number above 0",
        )
        pieces += _check_examples(source, split, f"{spec}: read of the {name} split")
    checked: Source = replace(source, digest=source.digest or digest_of(pieces))
    return checked


def _check_examples(source: Source, split: Split, what: str) -> list[bytes]:
    """Read some examples, first and last among them, compiled as in training; return bytes."""
    chosen = spread(split.size)
    try:
        raw, labels = tf.function(split.read)(tf.constant(chosen, tf.int64))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1].strip()
        raise UserError(
            f"{what} failed in a compiled step (use TensorFlow ops only): "
            f"{type(error).__name__}: {reason}"
        ) from error
    encoded = source.image_shape is None
    wanted = f"{'string' if encoded else 'uint8'} {(len(chosen), *(source.image_shape or ()))}"
    _require(_kind(raw) == wanted, f"{what} gave {_kind(raw)}; it must be {wanted}")
    wanted = f"int32 {(len(chosen),)}"
    _require(_kind(labels) == wanted, f"{what} gave labels {_kind(labels)}; they must be {wanted}")
    for index, label in zip(chosen, labels.numpy().tolist(), strict=True):
        allowed = f"labels are 0 to {len(source.classes) - 1}"
        known = 0 <= label < len(source.classes)
        _require(known, f"{what} gave label {label} for example {index}; {allowed}")
    strings = raw.numpy().tolist() if encoded else [raw.numpy().tobytes()]
    return [*strings, labels.numpy().tobytes()]


def _kind(tensor: tf.Tensor) -> str:
    return f"{tensor.dtype.name} {tuple(tensor.shape)}"


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)
