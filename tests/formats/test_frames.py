"""The frames of TFRecords: written as TensorFlow writes them, and read with every checksum."""

import gzip
import io
import os
import struct

import pytest
import tensorflow as tf

from paceline.formats.tfrecord import frames
from paceline.formats.tfrecord.frames import (
    FRAME_BYTES,
    BadRecord,
    find_offsets,
    framed,
    is_gzip,
    read_all,
    read_record,
)


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
    assert Counting.read_bytes == 20 * frames.HEADER_BYTES


@pytest.mark.parametrize(("damaged", "read"), [("data", [0, 2, 3]), ("length", [0])])
def test_damaged_data_lose_one_record_and_a_damaged_length_the_rest(damaged, read):
    data = [os.urandom(length) for length in (10, 2_500, 0, 77)]
    content = bytearray(b"".join(map(framed, data)))
    second = 10 + FRAME_BYTES
    content[second + (2 if damaged == "length" else 20)] ^= 1
    found = list(read_all(io.BytesIO(bytes(content)), "name", len(content)))
    assert [each for _, each in found if isinstance(each, bytes)] == [data[k] for k in read]
    faults = [(offset, each) for offset, each in found if isinstance(each, BadRecord)]
    assert [offset for offset, _ in faults] == [second]
    lost = f"{len(content) - second:,} bytes from there on cannot be read"
    assert (lost in faults[0][1].reason) == (damaged == "length")


def test_a_length_that_would_fill_the_memory_is_refused():
    length = struct.pack("<Q", 2**62)
    content = length + struct.pack("<I", frames.masked_crc(length)) + bytes(50)
    with pytest.raises(BadRecord, match="cut in the middle"):
        read_record(io.BytesIO(content), "name", 0, len(content))


def test_a_record_that_begins_like_gzip_is_not_taken_for_gzip():
    record = framed(bytes(0x088B1F))
    assert record[:3] == frames.GZIP_MAGIC
    assert not is_gzip(io.BytesIO(record))
    assert is_gzip(io.BytesIO(gzip.compress(record)))
