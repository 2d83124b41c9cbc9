"""Data sources by name: a table, imported lazily, and the user's own through `data.build`.

It builds and checks sources and holds out a validation split. The order of examples and their
augmentation are in `order` and `augment`. TensorFlow is imported only when a source is built, so
that `fetch`, `save_arrays` and `detect` run without it.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError, did_you_mean
from paceline.experiment.experiment import Data, Records
from paceline.experiment.user_code import load_function
from paceline.storage.backends import is_remote
from paceline.storage.retry import retry

if TYPE_CHECKING:
    from paceline.data.source import Source, Split

__all__ = ["SOURCES", "Source", "Split", "build_source", "hold_out"]

SOURCES = {
    "arrays": "paceline.formats.arrays:build_arrays",
    "cifar10": "paceline.formats.cifar:build_cifar10",
    "cifar100": "paceline.formats.cifar:build_cifar100",
    "pictures": "paceline.formats.image_folder:build_pictures",
    "shapes": "paceline.data.shapes:build_shapes",
    "tfrecord": "paceline.formats.tfrecord.tfrecord_source:build_tfrecord",
}

NOTED = Records()
"""TFRecords are read as their conversion noted."""
HOLD_OUT_KEY = (20_151_210, 1_512_033)
"""Fixed, so that the validation examples are the same whatever the experiment's seed."""


def __getattr__(name: str) -> Any:
    if name in ("Source", "Split"):
        return getattr(importlib.import_module("paceline.data.source"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def build_source(data: Data, records: Records = NOTED) -> Source:
    """The source that `data.build` or else `data.source` names. A remote folder is copied into the
    cache first."""
    if is_remote(data.dir):
        from paceline.storage.data_cache import local_folder

        data = dataclasses.replace(data, dir=local_folder(data.dir))
    if data.build:
        source = load_function(data.build)(data)
        digest = _check_source(source, data.build)
        source = dataclasses.replace(source, digest=source.digest or digest)
        return _with_printable_names(source)
    return _with_printable_names(retry(lambda: _build_known(data, records)))


def _build_known(data: Data, records: Records) -> Source:
    name = data.source
    if name == "auto":
        from paceline.formats.detect import detect

        name = detect(data.dir)
    if name not in SOURCES:
        raise UserError(
            f"there is no data source {name!r}; {did_you_mean(name, [*sorted(SOURCES), 'auto'])}"
        )
    module, _, function = SOURCES[name].partition(":")
    build = getattr(importlib.import_module(module), function)
    source: Source = build(data, records) if name == "tfrecord" else build(data)
    return source


def _with_printable_names(source: Source) -> Source:
    """Return the source with class names that can be written as UTF-8: those of folders need not
    be."""
    names = (name.encode(errors="backslashreplace").decode() for name in source.classes)
    return dataclasses.replace(source, classes=tuple(names))


def hold_out(source: Source, validation: int) -> tuple[Split, Split | None]:
    """Part the training split: the last `validation` places of a fixed permutation are held out, so
    that data sorted by class are parted fairly. The parts are disjoint and together are the whole
    split."""
    size = source.train.size
    if validation == 0:
        return source.train, None
    if not 0 < validation < size:
        raise UserError(
            f"data.validation is {validation}; of {size} training examples, 0 to {size - 1} can "
            "be held out"
        )
    kept = size - validation
    return _part(source.train, 0, kept), _part(source.train, kept, validation)


def _part(split: Split, start: int, size: int) -> Split:
    import tensorflow as tf

    from paceline.data.source import Split

    def original(indices: tf.Tensor) -> tf.Tensor:
        places = tf.cast(indices, tf.int64) + start
        return tf.random.experimental.index_shuffle(
            places, HOLD_OUT_KEY, tf.constant(split.size - 1, tf.int64)
        )

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return split.read(original(indices))

    labels = split.labels
    return Split(size, read, labels and (lambda indices: labels(original(indices))))


def _check_source(source: Any, spec: str) -> str:
    """Raise UserError if the source cannot be used; return the digest of some examples."""
    from paceline.data.digests import digest_of
    from paceline.data.source import Source, Split

    if not isinstance(source, Source):
        raise UserError(
            f"{spec} returned a {type(source).__name__}; it must return a paceline.Source"
        )
    if (
        not isinstance(source.classes, (tuple, list))
        or not source.classes
        or not all(isinstance(c, str) for c in source.classes)
    ):
        raise UserError(
            f"{spec}: classes is {source.classes!r}; it must be a tuple of one name per class"
        )
    shape = source.image_shape
    if shape is not None and not (
        len(shape) == 3 and all(isinstance(side, int) and side > 0 for side in shape)
    ):
        raise UserError(
            f"{spec}: image_shape is {shape!r}; it must be (height, width, channels), or None for "
            "encoded images"
        )
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
    return digest_of(pieces)


def _check_examples(source: Source, split: Split, what: str) -> list[bytes]:
    """Read some examples from one end to the other as the training step will: compiled.

    Returns their bytes.
    """
    import tensorflow as tf

    from paceline.data.digests import spread

    chosen = spread(split.size)
    try:
        raw, labels = tf.function(split.read)(tf.constant(chosen, tf.int64))
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1].strip()
        raise UserError(
            f"{what} failed in a compiled step (use TensorFlow ops only): "
            f"{type(error).__name__}: {reason}"
        ) from error
    dtype = tf.string if source.image_shape is None else tf.uint8
    shape = (len(chosen), *(source.image_shape or ()))
    if (raw.dtype, tuple(raw.shape)) != (dtype, shape):
        raise UserError(
            f"{what} gave {raw.dtype.name} {tuple(raw.shape)}; it must be {dtype.name} {shape}"
        )
    if labels.dtype != tf.int32 or tuple(labels.shape) != (len(chosen),):
        raise UserError(
            f"{what} gave labels {labels.dtype.name} {tuple(labels.shape)}; they must be int32 "
            f"({len(chosen)},)"
        )
    highest = len(source.classes) - 1
    for index, label in zip(chosen, labels.numpy().tolist(), strict=True):
        if not 0 <= label <= highest:
            raise UserError(
                f"{what} gave label {label} for example {index}; labels are 0 to {highest}"
            )
    images = raw.numpy()
    return [
        *(images.tolist() if dtype == tf.string else [images.tobytes()]),
        labels.numpy().tobytes(),
    ]
