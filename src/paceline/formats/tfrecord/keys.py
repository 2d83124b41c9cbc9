"""How one record is read: the keys of its image and label, and what a good record must have.

Keys come from the flags, from `dataset.json`, or are ImageNet's; the first record may add the
shape of plain bytes. Every check of a record's content is here. No TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from paceline.errors import did_you_mean
from paceline.experiment.experiment import Records
from paceline.formats.tfrecord import example
from paceline.formats.tfrecord.frames import BadRecord, Shard, read_record
from paceline.storage.files import explained

IMAGE_KEY, LABEL_KEY = "image/encoded", "image/class/label"
ENCODED_IMAGE = (b"\xff\xd8\xff", b"\x89PNG\r\n")
IMAGENET = Records(IMAGE_KEY, LABEL_KEY, 0, (), "channels_last")


def complete_keys(given: Records, noted: Records) -> Records:
    """Return the keys that were given, else those that the conversion noted, else ImageNet's."""
    kinds = (given, noted, IMAGENET)
    return Records(
        given.image_key or noted.image_key or IMAGENET.image_key,
        given.label_key or noted.label_key or IMAGENET.label_key,
        next(each.first_label for each in kinds if each.first_label >= 0),
        given.raw_shape or noted.raw_shape,
        given.raw_order or noted.raw_order or IMAGENET.raw_order,
    )


def raw_bytes(keys: Records) -> int:
    """Return the size of an image of plain bytes; 0 for JPEG and PNG."""
    return math.prod(keys.raw_shape) if keys.raw_shape else 0


def label_fault(keys: Records, num_classes: int) -> str:
    """Return what is wrong with a label that is not one of the classes."""
    last, first = keys.first_label + num_classes - 1, 1 - keys.first_label
    classes = f"the {num_classes} classes, {keys.first_label} to {last}"
    return f"is outside {classes}; if labels count from {first}, give --records.first-label {first}"


def size_fault(keys: Records) -> str:
    """Return what is wrong with plain bytes that do not have the right length."""
    return f"bytes, but {keys.raw_shape} needs {raw_bytes(keys)}"


def fit_keys(keys: Records, shard: Shard, offset: int = 0) -> Records:
    """Compare the keys with one record of a shard. Return them with the shape of plain bytes, if
    the record has it and none was given."""
    path = shard.given
    with explained("read", Path(path)), open(shard.path, "rb") as file:
        data = read_record(file, path, offset, shard.size)
    try:
        features = example.decode(data)
    except ValueError as error:
        raise BadRecord(path, offset, f"the record is {error}") from error
    for flag, key in (("image-key", keys.image_key), ("label-key", keys.label_key)):
        if key not in features:
            advice = f"give --records.{flag}; {did_you_mean(key, sorted(features))}"
            raise BadRecord(path, offset, f"no feature {key!r}: {advice}")
    image = features[keys.image_key][0] if features[keys.image_key] else b""
    if keys.raw_shape or not isinstance(image, bytes) or image.startswith(ENCODED_IMAGE):
        return keys
    numbers = [features.get(name) or [0] for name in ("height", "width")]
    sides = [each[0] for each in numbers if isinstance(each[0], int)]
    channels = len(image) // math.prod(sides) if len(sides) == 2 and min(sides) > 0 else 0
    if channels not in (1, 3, 4) or channels * math.prod(sides) != len(image):
        advice = f"for {len(image)} plain bytes give --records.raw-shape H W C"
        raise BadRecord(path, offset, f"an image is neither JPEG nor PNG; {advice}")
    return dataclasses.replace(keys, raw_shape=(*sides, channels))


def parse_example(data: bytes, image_key: str, label_key: str) -> tuple[bytes, int]:
    """Return the image and the label of a record. Raise ValueError with what is wrong with it."""
    try:
        features = example.decode(data)
    except ValueError as error:
        raise ValueError(f"a record is {error}") from None
    image = _single(features, image_key, bytes, "image-key")
    return image, _single(features, label_key, int, "label-key")


def _single(features: example.Features, key: str, kind: type, flag: str) -> Any:
    if key not in features:
        names = ", ".join(sorted(features)[:12]) or "nothing"
        raise ValueError(
            f"a record has no feature {key!r} (it has {names}); give --records.{flag} with one of "
            "these if that is the wrong name"
        )
    values = features[key]
    if len(values) != 1 or not isinstance(values[0], kind):
        found = f"{len(values)} values" if len(values) != 1 else f"a {type(values[0]).__name__}"
        raise ValueError(f"a record has {found} in {key!r}; it must have one {kind.__name__}")
    return values[0]


def check_example(data: bytes, keys: Records, num_classes: int) -> tuple[bytes, int]:
    """Return image and label of a record that training accepts; else raise ValueError.

    With `num_classes` 0, any label from the first one on is accepted."""
    image, label = parse_example(data, keys.image_key, keys.label_key)
    number = label - keys.first_label
    if number < 0 or (num_classes and number >= num_classes):
        raise ValueError(f"label {label} {label_fault(keys, num_classes)}")
    if raw_bytes(keys) not in (0, len(image)):
        raise ValueError(f"an image of {len(image)} {size_fault(keys)}")
    return image, label
