"""tf.train.Example without TensorFlow: encode and decode one message with protobuf.

Processes that convert or check records need nothing else of TensorFlow. The message types are
TensorFlow's, built in a descriptor pool of their own, so they never collide with TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

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


def _build_message_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_DESCRIPTION, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


_Example = _build_message_class()


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
        raise ValueError("not a tf.train.Example") from None
    return {key: _values(feature) for key, feature in found.items()}


def _values(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []
