"""One TFRecord: its frame in a file, and the tf.train.Example in it. No TensorFlow.

A record is its length (8 bytes), the masked CRC-32C of the length (4), the data, and the masked
CRC-32C of the data (4). Functions take an open binary file, its name and its size. They raise or
yield a `BadRecord` for damage, and raise OSError if the disk fails. The data is a message whose
types are TensorFlow's, in a descriptor pool of their own, so they never collide with TensorFlow's.
"""

import math
import struct
from array import array
from collections.abc import Iterator, Mapping
from typing import IO, Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from paceline.errors import UserError
from paceline.experiment.experiment import Records
from paceline.storage.array_files import read_exactly

HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_HEADER, _NUMBER = struct.Struct("<QI"), struct.Struct("<I")
Value = bytes | str | int
TEXT_KEY = "image/class/text"
"""Of ImageNet's records: the name of the class."""
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


class BadRecord(UserError):
    """A record that cannot be used: its file, the byte where it begins, and the reason."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}, offset {offset}: {reason}")
        self.file, self.offset, self.reason = file, offset, reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.file, self.offset, self.reason)


class Shard(NamedTuple):
    """A file of records. `stamp` changes when the content does."""

    path: str
    size: int
    stamp: str


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of `data`, masked as TFRecords store it."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """Return `data` as a record, ready to be written."""
    length = struct.pack("<Q", len(data))
    checksums = (_NUMBER.pack(masked_crc(piece)) for piece in (length, data))
    return length + next(checksums) + data + next(checksums)


def find_offsets(file: IO[bytes], name: str, size: int) -> npt.NDArray[np.int64]:
    """Return the offset of each record, int64 [n]. Reads the lengths only and skips the data."""
    offsets, offset = array("q"), 0
    while offset < max(size, 1):
        offsets.append(offset)
        offset += FRAME_BYTES + read_length(file, name, offset, size)
    return np.frombuffer(offsets, np.int64)


def read_length(file: IO[bytes], name: str, offset: int, size: int) -> int:
    """Return the length of the data of the record at `offset`, after checking its CRC."""
    cut = f"the shard is cut in the middle of a record, at byte {size}"
    if size == 0:
        raise BadRecord(name, 0, "the shard is empty (0 bytes); write it again, or remove it")
    if offset + HEADER_BYTES > size:
        raise BadRecord(name, offset, cut)
    file.seek(offset)
    header = read_exactly(file, HEADER_BYTES)
    length: int
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        lost = f"so the {size - offset:,} bytes from there on cannot be read"
        damage = f"the length of a record is damaged (CRC), {lost}"
        other = "gzip data; unpack it" if header.startswith(b"\x1f\x8b") else "not a TFRecord file"
        raise BadRecord(name, offset, damage if offset else f"this is {other}")
    if offset + FRAME_BYTES + length > size:
        raise BadRecord(name, offset, cut)
    return length


def read_record(file: IO[bytes], name: str, offset: int, size: int) -> bytes:
    """Return the data of the record at `offset`, both checksums verified."""
    length = read_length(file, name, offset, size)
    content = read_exactly(file, length + FOOTER_BYTES)
    data = content[:length]
    if masked_crc(data) != _NUMBER.unpack_from(content, length)[0]:
        raise BadRecord(name, offset, "the data of a record are damaged (CRC)")
    return data


def read_all(file: IO[bytes], name: str, size: int) -> Iterator[tuple[int, bytes | BadRecord]]:
    """Yield every record with its offset, and a `BadRecord` in place of a damaged one.

    Damaged data lose one record. A damaged length loses the rest of the file, because only the
    length says where the next record begins.
    """
    offset = 0
    while offset < max(size, 1):
        try:
            yield offset, read_record(file, name, offset, size)
        except BadRecord as bad:
            yield offset, bad
        try:
            offset += FRAME_BYTES + read_length(file, name, offset, size)
        except BadRecord:
            return


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


def parse_label(data: bytes, image_key: str, label_key: str) -> tuple[int, str]:
    """Return the label of a record that has an image, and the text of its class or nothing."""
    features = decode(data)
    _single(features, image_key, bytes, "image-key")
    text = next(iter(features.get(TEXT_KEY, ())), b"")
    label: int = _single(features, label_key, int, "label-key")
    return label, text.decode(errors="replace") if isinstance(text, bytes) else ""


def _single(features: Features, key: str, kind: type, flag: str) -> Any:
    if key not in features:
        names = ", ".join(sorted(features)[:12]) or "nothing"
        advice = f"pass --records.{flag} with one of these if that is the wrong name"
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
    advice = f"if labels count from {other}, pass --records.first-label {other}"
    return f"label {label} is outside {classes}; {advice}"
