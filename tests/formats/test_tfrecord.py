"""TFRecords: frames, Examples, the index, reading by offset, and clear errors for damage."""

import dataclasses
import gzip
import io
import os
import struct
import subprocess
import sys
import time
import timeit

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline.data.build import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats.detect import detect
from paceline.formats.tfrecord import example, index, records, retries
from paceline.formats.tfrecord.index import FILE_NAME, ShardIndex, load_index, pack, unpack
from paceline.formats.tfrecord.records import (
    FRAME_BYTES,
    BadRecord,
    Shard,
    find_offsets,
    framed,
    is_gzip,
    next_record,
    read_all,
    read_record,
)
from paceline.formats.tfrecord.shards import find_shards
from paceline.formats.tfrecord.tfrecord_source import build_tfrecord, explain

JPEG = b"\xff\xd8\xff"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))


def imagenet_example(shard, number, label):
    """A record of its own length and content."""
    return example.encode(
        {"image/encoded": JPEG + bytes([shard]) * (number + 1), "image/class/label": label}
    )


def write_imagenet(folder, shards=3, per_shard=5, labels_file=True, num_classes=5):
    """Labels from 1; the label of record k of a shard is k + 1."""
    folder.mkdir(exist_ok=True)
    for split, count in (("train", shards), ("validation", 1)):
        for shard in range(count):
            content = b"".join(
                framed(imagenet_example(shard, k, k % num_classes + 1)) for k in range(per_shard)
            )
            (folder / f"{split}-{shard:05d}-of-{count:05d}").write_bytes(content)
    if labels_file:
        (folder / "labels.txt").write_text(
            "".join(f"class {label}\n" for label in range(num_classes))
        )
    return folder


def build(folder, **options):
    return build_source(Data(source="tfrecord", dir=str(folder), **({"first_label": 1} | options)))


def offsets_of(file):
    with file.open("rb") as stream:
        return find_offsets(stream, str(file), file.stat().st_size).tolist()


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place] ^= 0x10
    file.write_bytes(content)


def assert_one_line(error, *parts):
    assert "\n" not in str(error)
    for part in parts:
        assert str(part) in str(error)


# The frame and the Example, against TensorFlow's own


def test_records_are_those_that_tensorflow_writes_and_reads(tmp_path):
    data = [b"", b"x", bytes(range(256)) * 40]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for each in data:
            writer.write(each)
    (tmp_path / "ours").write_bytes(b"".join(map(framed, data)))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    with (tmp_path / "theirs").open("rb") as file:
        size = (tmp_path / "theirs").stat().st_size
        assert [found for _, found in read_all(file, "theirs", size)] == data


VALUES = st.one_of(st.binary(max_size=40), st.text(max_size=20), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=6))
def test_examples_are_encoded_to_the_bytes_of_tf_train_example(features):
    theirs = tf.train.Example()
    for key, value in features.items():
        if isinstance(value, int):
            theirs.features.feature[key].int64_list.value.append(value)
        else:
            theirs.features.feature[key].bytes_list.value.append(
                value.encode() if isinstance(value, str) else value
            )
    encoded = example.encode(features)
    assert encoded == theirs.SerializeToString(deterministic=True)
    expected = {
        key: [value.encode() if isinstance(value, str) else value]
        for key, value in features.items()
    }
    assert example.decode(encoded) == expected


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False)),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.binary()),
)
def test_every_kind_of_feature_is_decoded(floats, numbers, blobs):
    theirs = tf.train.Example()
    theirs.features.feature["f"].float_list.value.extend(floats)
    theirs.features.feature["i"].int64_list.value.extend(numbers)
    theirs.features.feature["b"].bytes_list.value.extend(blobs)
    assert example.decode(theirs.SerializeToString()) == {"f": floats, "i": numbers, "b": blobs}


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff garbage",
        b"\x0a\x7f",
        b"\x0a\x02\x0a\x05",
        b"\x07",
        b"\x80" * 11,
        b"\x0b" * 100_000,
        b"\x0a\x05\x0a\x03\x0a\x01\xff",
    ],
    ids=["text", "cut", "cut inside", "wire type 7", "endless number", "nested groups", "no UTF-8"],
)
def test_what_is_no_example_is_refused(data):
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        example.decode(data)


# Reading


def test_records_are_read_by_index_in_any_order_inside_a_compiled_loop(tmp_path):
    source = build(write_imagenet(tmp_path / "data"))
    assert (source.train.size, source.test.size, source.image_shape) == (15, 5, None)
    assert source.classes == tuple(f"class {label}" for label in range(5))
    order = np.random.default_rng(3).permutation(np.tile(np.arange(15), 4)).reshape(10, 6)

    @tf.function
    def read_batches(batches):
        images, labels = tf.TensorArray(tf.string, 10), tf.TensorArray(tf.int32, 10)
        for step in tf.range(10):
            raw, found = source.train.read(batches[step])
            images, labels = images.write(step, raw), labels.write(step, found)
        return images.stack(), labels.stack()

    images, labels = read_batches(tf.constant(order, tf.int64))
    assert labels.numpy().tolist() == (order % 5).tolist()
    assert images.numpy().tolist() == [
        [JPEG + bytes([i // 5]) * (i % 5 + 1) for i in row] for row in order.tolist()
    ]


def test_shapes_are_known_while_tracing_where_the_batch_size_is(tmp_path):
    read = tf.function(build(write_imagenet(tmp_path / "data")).train.read)
    images, labels = read.get_concrete_function(tf.TensorSpec([4], tf.int64)).structured_outputs
    assert (images.shape, labels.shape, labels.dtype) == ([4], [4], tf.int32)


def test_labels_from_0_and_classes_from_the_records_where_no_file_names_them(tmp_path):
    source = build(write_imagenet(tmp_path / "data", labels_file=False), first_label=0)
    assert source.classes == tuple("012345")
    assert source.train.read(tf.constant([0, 4], tf.int64))[1].numpy().tolist() == [1, 5]
    assert len(build(tmp_path / "data", first_label=1).classes) == 5


def test_the_raw_records_of_cifar10_estimator_are_read_channels_first(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), np.uint8)
    for name in ("train", "validation", "eval"):
        rows = pixels if name == "train" else pixels[:1] if name == "eval" else pixels[:2]
        content = [
            framed(example.encode({"image": row.tobytes(), "label": k}))
            for k, row in enumerate(rows)
        ]
        (tmp_path / f"{name}.tfrecords").write_bytes(b"".join(content))
    options = {
        "image_key": "image",
        "label_key": "label",
        "raw_shape": (32, 32, 3),
        "raw_order": "channels_first",
        "first_label": 0,
    }
    source = build(tmp_path, **options)
    assert (source.train.size, source.test.size, source.image_shape) == (4, 1, (32, 32, 3))
    raw, labels = tf.function(source.train.read)(tf.constant([3, 1], tf.int64))
    np.testing.assert_array_equal(raw.numpy(), pixels.transpose(0, 2, 3, 1)[[3, 1]])
    assert labels.numpy().tolist() == [3, 1]
    with pytest.raises(UserError) as error:
        build(tmp_path, **options | {"raw_shape": ()})
    assert_one_line(
        error.value, "3072 plain bytes", "--data.raw-shape", "train.tfrecords", "offset 0"
    )


def test_the_printed_form_has_its_shape_in_the_record(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 6, 3), np.uint8)
    for name in ("train", "eval"):
        rows = [
            {"height": 4, "width": 6, "image_str": row.tobytes(), "label": k}
            for k, row in enumerate(pixels)
        ]
        (tmp_path / f"{name}.tfrecord").write_bytes(
            b"".join(framed(example.encode(row)) for row in rows)
        )
    source = build(tmp_path, image_key="image_str", label_key="label", first_label=0)
    assert source.image_shape == (4, 6, 3)
    np.testing.assert_array_equal(
        source.train.read(tf.constant([2], tf.int64))[0].numpy(), pixels[2:]
    )


def test_gzip_is_unpacked_once_into_the_cache(tmp_path, monkeypatch):
    plain = build(write_imagenet(tmp_path / "plain"))
    folder = tmp_path / "packed"
    folder.mkdir()
    for file in (tmp_path / "plain").glob("*-of-*"):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    everything = tf.range(15, dtype=tf.int64)
    for _ in range(2):
        assert (
            build(folder, first_label=1).train.read(everything)[0].numpy().tolist()
            == plain.train.read(everything)[0].numpy().tolist()
        )
        monkeypatch.setattr(index, "unpack_gzip", None)


def test_a_length_that_looks_like_gzip_is_told_apart():
    record = framed(bytes(0x088B1F))
    assert record[:3] == records.GZIP_MAGIC
    assert not is_gzip(io.BytesIO(record))
    assert is_gzip(io.BytesIO(gzip.compress(record)))


def test_remote_folders_are_copied_into_the_cache_through_fsspec(tmp_path):
    write_imagenet(tmp_path / "data")
    source = build(f"file://{tmp_path}/data")
    assert source.train.read(tf.constant([14], tf.int64))[0].numpy()[0] == JPEG + b"\2" * 5


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train-00000-of-00001", "validation-00000-of-00001"], {"train", "validation"}),
        (
            ["train.tfrecords", "validation.tfrecords", "eval.tfrecords"],
            {"train", "validation", "eval"},
        ),
        (
            ["cifar10-train.tfrecord-00000-of-00001", "cifar10-test.tfrecord-00000-of-00001"],
            {"train", "test"},
        ),
        (["train-00000-of-00001.tfrecord.gz", "train", "test", "trains-00000-of-00001"], {"train"}),
    ],
)
def test_shards_are_known_by_their_names(tmp_path, names, splits):
    for name in names:
        (tmp_path / name).touch()
    assert find_shards(str(tmp_path)).keys() == splits


def test_a_missing_shard_is_named(tmp_path):
    (write_imagenet(tmp_path / "data") / "train-00001-of-00003").unlink()
    with pytest.raises(UserError) as error:
        build(tmp_path / "data")
    assert_one_line(error.value, "2 of 3", "train-00001-of-00003 is missing")


def test_the_folder_is_detected(tmp_path):
    assert detect(write_imagenet(tmp_path / "data")) == "tfrecord"


# The index


def test_the_index_is_kept_beside_the_data_and_used_again(tmp_path, monkeypatch):
    folder = write_imagenet(tmp_path / "data")
    build(folder)
    assert (folder / FILE_NAME).is_file()
    monkeypatch.setattr(index, "find_offsets", None)
    assert build(folder).train.size == 15


def test_only_the_shard_that_changed_is_indexed_again(tmp_path, monkeypatch):
    folder = write_imagenet(tmp_path / "data")
    build(folder)
    changed = folder / "train-00001-of-00003"
    changed.write_bytes(framed(imagenet_example(9, 0, 3)) * 2)
    made = []
    monkeypatch.setattr(
        index,
        "find_offsets",
        lambda file, name, *rest: made.append(name) or find_offsets(file, name, *rest),
    )
    source = build(folder)
    assert (source.train.size, made) == (12, [str(changed)])
    assert source.train.read(tf.constant([6], tf.int64))[0].numpy()[0] == JPEG + b"\x09"


def test_an_index_that_fits_by_its_stamp_but_not_the_file_is_made_again(tmp_path):
    folder = write_imagenet(tmp_path / "data")
    build(folder)
    file = folder / "train-00000-of-00003"
    stat, content = file.stat(), file.read_bytes()
    other = framed(imagenet_example(7, 30, 1))
    file.write_bytes(other + framed(bytes(len(content) - len(other) - FRAME_BYTES)))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size
    assert build(folder).train.size == 12


def test_a_damaged_index_is_made_again(tmp_path):
    folder = write_imagenet(tmp_path / "data")
    build(folder)
    whole = (folder / FILE_NAME).read_bytes()
    for damaged in (b"", whole[:-3], whole[:40] + b"\x00" + whole[41:], os.urandom(300)):
        (folder / FILE_NAME).write_bytes(damaged)
        assert build(folder).train.size == 15
        assert (folder / FILE_NAME).read_bytes() == whole


def test_the_index_goes_to_the_cache_where_the_folder_cannot_be_written(tmp_path, monkeypatch):
    folder = write_imagenet(tmp_path / "data")
    (folder / FILE_NAME).mkdir()  # nothing can be renamed over a folder, not even by root
    build(folder)
    assert list(index.cache_folder().glob("index-*"))
    monkeypatch.setattr(index, "find_offsets", None)
    assert build(folder).train.size == 15


def test_the_index_of_a_million_records_loads_in_under_a_second_and_is_small():
    offsets = np.arange(1_000_000, dtype=np.int64) * 110_000
    shards = [
        Shard(f"/data/train-{n:05d}-of-01000", f"train-{n:05d}-of-01000", 10**8, "1")
        for n in range(1000)
    ]
    part = [
        ShardIndex(s, offsets[n * 1000 : (n + 1) * 1000], np.zeros(1000, np.int32), (), ("a", "b"))
        for n, s in enumerate(shards)
    ]
    content = pack(part)
    assert len(content) <= 16 * 1_000_000
    # timeit turns garbage collection off: with the objects of all other tests it takes a second
    assert timeit.timeit(lambda: unpack(content), timer=time.thread_time, number=1) < 1.0
    found = unpack(content)
    np.testing.assert_array_equal(np.concatenate([each.offsets for each in found]), offsets)


def test_indexing_reads_lengths_only(tmp_path):
    class Counting(io.BytesIO):
        read_bytes = 0

        def read(self, size=-1):
            Counting.read_bytes += size
            return super().read(size)

    content = framed(bytes(100_000)) * 20
    assert len(find_offsets(Counting(content), "name", len(content))) == 20
    assert Counting.read_bytes == 20 * records.HEADER_BYTES


# Bad input

DAMAGE = {
    "cut in the data": (
        lambda file, at: file.write_bytes(file.read_bytes()[: at[3] + 20]),
        "cut in the middle",
        3,
    ),
    "cut in a length": (
        lambda file, at: file.write_bytes(file.read_bytes()[: at[3] + 5]),
        "cut in the middle",
        3,
    ),
    "flipped byte in a length": (
        lambda file, at: flip(file, at[2] + 1),
        "length of a record is damaged",
        2,
    ),
    "flipped byte in a length's CRC": (
        lambda file, at: flip(file, at[2] + 9),
        "length of a record is damaged",
        2,
    ),
    "empty": (lambda file, at: file.write_bytes(b""), "empty", 0),
    "no TFRecord file": (
        lambda file, at: file.write_bytes(b"hello, this is a text file\n" * 9),
        "not a TFRecord file",
        0,
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_that_the_lengths_show_is_one_line_with_file_and_offset(tmp_path, name):
    file = write_imagenet(tmp_path / "data") / "train-00001-of-00003"
    damage, words, record = DAMAGE[name]
    at = offsets_of(file)
    damage(file, at)
    with pytest.raises(UserError) as error:
        build(tmp_path / "data")
    assert_one_line(error.value, file, words, f"offset {at[record]}")


def overwrite(file, offset, record):
    content = file.read_bytes()
    file.write_bytes(content[:offset] + record + content[offset + len(record) :])


LATE_DAMAGE = {
    "flipped byte in the data": (
        lambda file, at: flip(file, at[2] + 15),
        "data of a record are damaged",
    ),
    "flipped byte in the data's CRC": (
        lambda file, at: flip(file, at[3] - 1),
        "data of a record are damaged",
    ),
    "label outside": (
        lambda file, at: overwrite(file, at[2], framed(imagenet_example(1, 2, 6))),
        "label 6 is outside the 5 classes",
    ),
    "label 0": (
        lambda file, at: overwrite(file, at[2], framed(imagenet_example(1, 2, 0))),
        "label 0 is outside the 5 classes",
    ),
    "no Example": (
        lambda file, at: overwrite(file, at[2], framed(b"\xff" * (at[3] - at[2] - 16))),
        "not a tf.train.Example",
    ),
    "no label": (
        lambda file, at: overwrite(
            file, at[2], framed(imagenet_example(1, 2, 3).replace(b"label", b"lapel"))
        ),
        "no feature 'image/class/label'",
    ),
    "cut since the start": (
        lambda file, at: file.write_bytes(file.read_bytes()[: at[2] + 17]),
        "cut in the middle",
    ),
    "gone since the start": (lambda file, at: file.unlink(), "No such file"),
}


@pytest.mark.parametrize("name", LATE_DAMAGE)
def test_damage_that_only_reading_shows_is_explained_with_file_and_offset(
    tmp_path, monkeypatch, name
):
    monkeypatch.setattr(retries, "PAUSES_S", (0.0,) * 4)
    file = write_imagenet(tmp_path / "data") / "train-00001-of-00003"
    read, (damage, words), at = (
        tf.function(build(tmp_path / "data").train.read),
        LATE_DAMAGE[name],
        offsets_of(file),
    )
    damage(file, at)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        read(tf.constant([12, 7, 0, 5], tf.int64))
    explained = explain(error.value)
    assert isinstance(explained, UserError)
    assert_one_line(explained, file, words)
    if "since" not in name:
        assert_one_line(explained, f"offset {at[2]}")


def test_other_errors_are_not_explained():
    assert explain(ValueError("something else")) is None


@pytest.mark.parametrize("name", [*DAMAGE, *(name for name in LATE_DAMAGE if "since" not in name)])
def test_bad_records_are_skipped_when_that_is_asked_for_and_counted(tmp_path, name):
    file = write_imagenet(tmp_path / "data") / "train-00001-of-00003"
    at, whole_file = offsets_of(file), name in ("empty", "no TFRecord file")
    (DAMAGE | LATE_DAMAGE)[name][0](file, at)
    lost = 5 if whole_file else 2 if "cut" in name else 1
    data, said = (
        Data(source="tfrecord", dir=str(tmp_path / "data"), first_label=1, skip_bad=True),
        io.StringIO(),
    )
    first, second = (build_tfrecord(data, Console(file=said, width=500)) for _ in range(2))
    assert first.train.size == second.train.size == 15 - lost
    everything = tf.range(first.train.size, dtype=tf.int64)
    assert (
        first.train.read(everything)[0].numpy().tolist()
        == second.train.read(everything)[0].numpy().tolist()
    )
    lines = said.getvalue().splitlines()
    assert len(lines) == 2
    assert_one_line(lines[0], "left out 1 bad record", file)
    if name in DAMAGE or "label" not in name:
        with pytest.raises(UserError):  # the same index, without skipping
            build_tfrecord(dataclasses.replace(data, skip_bad=False))


def test_a_damaged_gzip_file_is_an_error_or_read_up_to_the_damage(tmp_path):
    folder = write_imagenet(tmp_path / "data", shards=1)
    file = folder / "train-00000-of-00001"
    packed = gzip.compress(file.read_bytes() + framed(os.urandom(60_000)))
    file.write_bytes(packed[:-30_000])
    with pytest.raises(UserError) as error:
        build(folder)
    assert_one_line(error.value, file, "gzip")
    assert build(folder, skip_bad=True).train.size == 5
    with pytest.raises(UserError):
        build(folder)


def test_reading_goes_on_at_the_next_whole_record_behind_a_lost_length():
    data = [os.urandom(length) for length in (10, 2_500_000, 0, 77)]
    content = bytearray(b"".join(map(framed, data)))
    second = 10 + FRAME_BYTES
    content[second + 2] ^= 1
    found = list(read_all(io.BytesIO(bytes(content)), "name", len(content)))
    assert [each for _, each in found if isinstance(each, bytes)] == [data[0], *data[2:]]
    assert [offset for offset, each in found if isinstance(each, BadRecord)] == [second]
    assert next_record(io.BytesIO(bytes(100)), "name", 0, 100) == 100


def test_a_length_that_would_fill_the_memory_is_refused():
    length = struct.pack("<Q", 2**62)
    content = length + struct.pack("<I", records.masked_crc(length)) + bytes(50)
    with pytest.raises(BadRecord, match="cut in the middle"):
        read_record(io.BytesIO(content), "name", 0, len(content))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_key": "image/encode"}, "did you mean 'image/encoded'"),
        ({"label_key": "label"}, "--data.label-key"),
        ({"first_label": 2}, "data.first-label is 2"),
        ({"raw_shape": (32, 32)}, "data.raw-shape is (32, 32)"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path, options, words):
    write_imagenet(tmp_path / "data")
    with pytest.raises(UserError) as error:
        build(tmp_path / "data", **options)
    assert_one_line(error.value, words)


@pytest.mark.parametrize("folder", ["", "nothing", "empty"])
def test_a_folder_without_shards_is_one_line(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as error:
        build(tmp_path / folder if folder else "")
    assert_one_line(error.value)


def test_the_index_of_one_set_of_keys_is_not_taken_for_another(tmp_path):
    folder = write_imagenet(tmp_path / "data", labels_file=False)
    shards = find_shards(str(folder))["train"]
    assert load_index(str(folder), shards, ("image/encoded", "image/class/label"))[
        0
    ].labels.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="no feature 'label'"):
        load_index(str(folder), shards, ("image/encoded", "label"))


def test_records_index_and_conversion_import_no_tensorflow():
    records = "example, index, keys, records, shards, tfrecord_source"
    formats = "check, conversion_inputs, convert, detect, image_file, image_folder"
    code = (
        f"import sys; from paceline.formats.tfrecord import {records}; "
        f"from paceline.formats import {formats}; "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
