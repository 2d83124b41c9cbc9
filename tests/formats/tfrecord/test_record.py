"""TFRecords: written as TensorFlow writes them, and read with every checksum."""

import io
import os
import random
import struct
from contextlib import suppress

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from mutations import mutate
from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.record import (
    FRAME_BYTES,
    HEADER_BYTES,
    BadRecord,
    find_offsets,
    framed,
    masked_crc,
    parse_example,
    read_all,
    read_record,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(st.binary(max_size=40), st.text(max_size=20), NUMBERS)


def test_records_are_those_that_tensorflow_writes_and_reads(tmp_path):
    data = [b"", b"x", bytes(range(256)) * 40]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for each in data:
            writer.write(each)
    content = (tmp_path / "theirs").read_bytes()
    assert b"".join(map(framed, data)) == content
    assert [found for _, found in read_all(io.BytesIO(content), "name", len(content))] == data


def test_finding_offsets_reads_the_lengths_only():
    class Counting(io.BytesIO):
        read_bytes = 0

        def read(self, size=-1):
            Counting.read_bytes += size
            return super().read(size)

    content = framed(bytes(100_000)) * 20
    assert len(find_offsets(Counting(content), "name", len(content))) == 20
    assert Counting.read_bytes == 20 * HEADER_BYTES


@pytest.mark.parametrize(("damaged", "read"), [("data", [0, 2, 3]), ("length", [0])])
def test_damaged_data_lose_one_record_and_a_damaged_length_the_rest(damaged, read):
    data = [os.urandom(length) for length in (10, 2_500, 0, 77)]
    content = bytearray(b"".join(map(framed, data)))
    second = 10 + FRAME_BYTES
    content[second + (2 if damaged == "length" else 20)] ^= 1
    found = list(read_all(io.BytesIO(bytes(content)), "name", len(content)))
    assert [each for _, each in found if isinstance(each, bytes)] == [data[k] for k in read]
    ((offset, fault),) = [(at, each) for at, each in found if isinstance(each, BadRecord)]
    lost = f"{len(content) - second:,} bytes from there on cannot be read"
    assert (offset, lost in fault.reason) == (second, damaged == "length")


def test_a_length_that_would_fill_the_memory_is_refused():
    length = struct.pack("<Q", 2**62)
    content = length + struct.pack("<I", masked_crc(length)) + bytes(50)
    with pytest.raises(BadRecord, match="cut in the middle"):
        read_record(io.BytesIO(content), "name", 0, len(content))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=6))
def test_examples_are_encoded_to_the_bytes_of_tf_train_example(features):
    theirs, expected = tf.train.Example(), {}
    for key, value in features.items():
        value = value.encode() if isinstance(value, str) else value
        feature = theirs.features.feature[key]
        kind = feature.int64_list if isinstance(value, int) else feature.bytes_list
        kind.value.append(value)
        expected[key] = [value]
    encoded = record.encode(features)
    assert encoded == theirs.SerializeToString(deterministic=True)
    assert record.decode(encoded) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False)), st.lists(NUMBERS), st.lists(st.binary()))
def test_every_kind_of_feature_is_decoded(floats, numbers, blobs):
    theirs = tf.train.Example()
    theirs.features.feature["f"].float_list.value.extend(floats)
    theirs.features.feature["i"].int64_list.value.extend(numbers)
    theirs.features.feature["b"].bytes_list.value.extend(blobs)
    assert record.decode(theirs.SerializeToString()) == {"f": floats, "i": numbers, "b": blobs}


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff garbage", b"\x0a\x7f", b"\x07", b"\x0b" * 100_000, b"\x0a\5\x0a\3\x0a\1\xff"],
)
def test_what_is_not_an_example_is_refused(data):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        record.decode(data)


@pytest.mark.slow
def test_a_damaged_example_is_decoded_as_tensorflow_decodes_it_or_refused():
    keys = {"image": tf.string, "label": tf.int64}
    features = {key: tf.io.FixedLenFeature([], kind) for key, kind in keys.items()}
    parse = tf.function(lambda data: tf.io.parse_single_example(data, features))
    wholes = [record.encode({"image": bytes([k]) * k**3, "label": k}) for k in range(9)]
    chance, compared = random.Random(3), 0
    for _ in range(2_000):
        content = mutate(chance.choice(wholes), chance)
        # TensorFlow's refusal may quote bytes that are not UTF-8
        with suppress(ValueError, tf.errors.InvalidArgumentError, UnicodeDecodeError):
            ours = dict(zip(keys, parse_example(content, *keys), strict=True))
            theirs = parse(tf.constant(content))
            assert {key: value.numpy() for key, value in theirs.items()} == ours
            compared += 1
    assert compared > 50
