"""tf.train.Example as bytes, read and written without TensorFlow: converting and checking processes need nothing else of it.

`encode` writes the bytes that tf.train.Example's deterministic serialisation writes; `decode` reads what it reads, and raises
ValueError for what is not an Example.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

Value = bytes | str | int
Features = dict[str, list[bytes] | list[int] | list[float]]

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def encode(features: Mapping[str, Value]) -> bytes:
    """An Example of one value per feature."""
    entries = [
        _field(1, _field(1, key.encode()) + _field(2, _feature(features[key])))
        for key in sorted(features)
    ]
    return _field(1, b"".join(entries))


def decode(data: bytes) -> Features:
    """Every feature with its values. Of a key that comes twice the last counts, as in TensorFlow."""
    features: Features = {}
    for number, wire, entries in _fields(memoryview(data)):
        if (number, wire) == (1, _DELIMITED):
            for number, wire, entry in _fields(entries):
                if (number, wire) == (1, _DELIMITED):
                    key, values = _decode_entry(entry)
                    features[key] = values
    return features


def _feature(value: Value) -> bytes:
    if isinstance(value, int):
        return _field(_INT64_LIST, _field(1, _varint(value & 0xFFFFFFFFFFFFFFFF)))
    return _field(_BYTES_LIST, _field(1, value.encode() if isinstance(value, str) else value))


def _field(number: int, content: bytes) -> bytes:
    return b"".join((_varint(number << 3 | _DELIMITED), _varint(len(content)), content))


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _decode_entry(entry: memoryview) -> tuple[str, list[bytes] | list[int] | list[float]]:
    key, values = "", []
    for number, wire, content in _fields(entry):
        if (number, wire) == (1, _DELIMITED):
            key = bytes(content).decode()
        elif (number, wire) == (2, _DELIMITED):
            values = _decode_feature(content)
    return key, values


def _decode_feature(feature: memoryview) -> list:
    values: list = []
    kind = 0
    for number, wire, content in _fields(feature):
        if wire == _DELIMITED and number in (_BYTES_LIST, _FLOAT_LIST, _INT64_LIST):
            values = values if number == kind else []
            kind = number
            for place, how, value in _fields(content):
                if place == 1:
                    values += _decode_values(kind, how, value)
    return values


def _decode_values(kind: int, wire: int, value: memoryview) -> list:
    if kind == _BYTES_LIST and wire == _DELIMITED:
        return [bytes(value)]
    if kind == _FLOAT_LIST and wire in (_DELIMITED, _FIXED32):
        return (
            [number for (number,) in struct.iter_unpack("<f", value)]
            if len(value) % 4 == 0
            else _fail("its floats are cut")
        )
    if kind == _INT64_LIST and wire in (_DELIMITED, _VARINT):
        values, place = [], 0
        while place < len(value):
            number, place = _read_varint(value, place)
            values.append(number - (1 << 64) if number >> 63 else number)
        return values
    return []


def _fields(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Number, wire type and content of each field; the content of a varint is its bytes."""
    place = 0
    while place < len(data):
        tag, start = _read_varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == _DELIMITED:
            length, start = _read_varint(data, start)
            place = start + length
        elif wire == _VARINT:
            place = _read_varint(data, start)[1]
        elif wire in (_FIXED64, _FIXED32):
            place = start + (8 if wire == _FIXED64 else 4)
        else:
            _fail(f"wire type {wire}")
        if place > len(data) or not 0 < number < 1 << 29:
            _fail("a field is longer than its message" if number else "field number 0")
        yield number, wire, data[start:place]


def _read_varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data) or shift > 63:
            _fail("a number does not end")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
        shift += 7


def _fail(reason: str) -> list:
    raise ValueError(f"not a tf.train.Example: {reason}")
