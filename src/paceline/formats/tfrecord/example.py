"""tf.train.Example without TensorFlow: encode and decode one message with protobuf, and check it.

Processes that convert or check records need nothing else of TensorFlow. The message types are
TensorFlow's, built in a descriptor pool of their own, so they never collide with TensorFlow's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from paceline.experiment.experiment import Records

Value = bytes | str | int
Features = dict[str, list[bytes] | list[int] | list[float]]

_DESCRIPTION = """
name: "paceline/example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".tensorflow.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".tensorflow.Features.Entry" }
  nested_type { name: "Entry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".tensorflow.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type_name: ".tensorflow.Features" } }
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_DESCRIPTION, descriptor_pb2.FileDescriptorProto()))
_Example: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("tensorflow.Example"))


def encode(features: Mapping[str, Value]) -> bytes:
    """Return an Example with one value per feature, as deterministic bytes."""
    example = _Example()
    for key, value in features.items():
        feature = example.features.feature[key]
        if isinstance(value, int):
            feature.int64_list.value.append(value)
        else:
            feature.bytes_list.value.append(value.encode() if isinstance(value, str) else value)
    encoded: bytes = example.SerializeToString(deterministic=True)
    return encoded


def decode(data: bytes) -> Features:
    """Return every feature with its values. Raise ValueError if `data` is not an Example."""
    try:
        found = _Example.FromString(data).features.feature
    except message.DecodeError:
        raise ValueError("a record is not a tf.train.Example") from None
    kinds = {key: feature.WhichOneof("kind") for key, feature in found.items()}
    return {
        key: list(getattr(found[key], kind).value) if kind else [] for key, kind in kinds.items()
    }


def parse_example(data: bytes, image_key: str, label_key: str) -> tuple[bytes, int]:
    """Return the image and the label of a record. Raise ValueError with what is wrong with it."""
    features = decode(data)
    image = _single(features, image_key, bytes, "image-key")
    return image, _single(features, label_key, int, "label-key")


def _single(features: Features, key: str, kind: type, flag: str) -> Any:
    if key not in features:
        names = ", ".join(sorted(features)[:12]) or "nothing"
        advice = f"give --records.{flag} with one of these if that is the wrong name"
        raise ValueError(f"a record has no feature {key!r} (it has {names}); {advice}")
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
        raise ValueError(label_fault(label, keys, num_classes))
    if keys.raw_shape and len(image) != math.prod(keys.raw_shape):
        needed = f"{keys.raw_shape} needs {math.prod(keys.raw_shape)}"
        raise ValueError(f"an image of {len(image)} bytes, but {needed}")
    return image, label


def label_fault(label: int, keys: Records, num_classes: int) -> str:
    """Return what is wrong with a label that is not one of the classes."""
    last, other = keys.first_label + num_classes - 1, 1 - keys.first_label
    classes = f"the {num_classes} classes, {keys.first_label} to {last}"
    advice = f"if labels count from {other}, give --records.first-label {other}"
    return f"label {label} is outside {classes}; {advice}"
