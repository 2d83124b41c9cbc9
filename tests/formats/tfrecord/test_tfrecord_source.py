"""The source of TFRecords: reading by index, other programs' records, and damage."""

import dataclasses
import gzip
import os

import numpy as np
import pytest
import tensorflow as tf

from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.check import check
from paceline.formats.reading import explain
from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.record import framed
from record_folders import (
    JPEG,
    assert_one_line,
    flip,
    imagenet_example,
    offsets_of,
    overwrite,
    write_imagenet,
)

FROM_1 = Records(first_label=1)


def build(folder, skip_bad=False, **options):
    data = Data(source="tfrecord", dir=str(folder), skip_bad=skip_bad)
    return build_source(data, dataclasses.replace(FROM_1, **options))


def write_records(file, rows):
    file.write_bytes(b"".join(framed(record.encode(row)) for row in rows))


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
    expected = [[JPEG + bytes([i // 5]) * (i % 5 + 1) for i in row] for row in order.tolist()]
    assert images.numpy().tolist() == expected


def test_shapes_are_known_while_tracing_where_the_batch_size_is(tmp_path):
    read = tf.function(build(write_imagenet(tmp_path / "data")).train.read)
    images, labels = read.get_concrete_function(tf.TensorSpec([4], tf.int64)).structured_outputs
    assert (images.shape, labels.shape, labels.dtype) == ([4], [4], tf.int32)


def test_the_raw_records_of_cifar10_estimator_are_read_channels_first(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), np.uint8)
    for name, count in (("train", 4), ("validation", 2), ("eval", 1)):
        rows = [{"image": row.tobytes(), "label": k} for k, row in enumerate(pixels[:count])]
        write_records(tmp_path / f"{name}.tfrecords", rows)
    keys = {"image_key": "image", "label_key": "label", "first_label": 0}
    source = build(tmp_path, **keys, raw_shape=(32, 32, 3), raw_order="channels_first")
    assert (source.train.size, source.test.size, source.image_shape) == (4, 1, (32, 32, 3))
    raw, labels = tf.function(source.train.read)(tf.constant([3, 1], tf.int64))
    np.testing.assert_array_equal(raw.numpy(), pixels.transpose(0, 2, 3, 1)[[3, 1]])
    assert labels.numpy().tolist() == [3, 1]
    with pytest.raises(UserError) as error:
        build(tmp_path, **keys)
    assert_one_line(error.value, "3072 plain bytes", "raw-shape", "train.tfrecords", "offset 0")
    source = build(tmp_path, **keys, raw_shape=(32, 32, 1))
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        source.train.read(tf.constant([0, 1], tf.int64))
    assert_one_line(explain(error.value), "train.tfrecords", "of 3072 bytes", "needs 1024")


@pytest.mark.parametrize("named", [False, True])
def test_labels_from_1_are_recognized(tmp_path, named):
    folder = write_imagenet(tmp_path / "records", labels_file=named)
    source = build(folder, first_label=-1)
    assert len(source.classes) == 5
    assert source.train.read(tf.constant([0, 4], tf.int64))[1].numpy().tolist() == [0, 4]
    problems = check(folder, processes=1).problems  # the images are not real
    assert not [line for line in problems if "is outside" in line]
    (folder / "labels.txt").write_text("background\n" + "".join(f"{k}\n" for k in range(5)))
    source = build(folder, first_label=-1)
    assert source.train.read(tf.constant([0, 4], tf.int64))[1].numpy().tolist() == [1, 5]
    (folder / "labels.txt").unlink()
    source = build(folder, first_label=0)
    assert source.classes == tuple("012345")
    assert source.train.read(tf.constant([0, 4], tf.int64))[1].numpy().tolist() == [1, 5]


def test_texts_of_classes_in_records_are_their_names(tmp_path):
    texts = ("tench, Tinca tinca", "goldfish", "shark")
    for name in ("train", "eval"):
        rows = [
            {"image/encoded": JPEG, "image/class/label": k + 1, "image/class/text": text}
            for k, text in enumerate(texts)
        ]
        write_records(tmp_path / f"{name}.tfrecords", rows)
    for _ in range(2):  # scanned, then from the index
        assert build(tmp_path, first_label=-1).classes == (
            "tench, Tinca tinca",
            "goldfish",
            "shark",
        )


def test_remote_folders_are_copied_into_the_cache_through_fsspec(tmp_path):
    write_imagenet(tmp_path / "data")
    source = build(f"file://{tmp_path}/data")
    assert source.train.read(tf.constant([14], tf.int64))[0].numpy()[0] == JPEG + b"\2" * 5


# Bad input


def replace_record(record):
    return lambda file, at: overwrite(file, at[2], framed(record))


TEXT = b"hello, this is a text file\n" * 9
DAMAGE = {
    "cut": (lambda f, at: os.truncate(f, at[3] + 20), "cut in the middle", 3, 2),
    "flipped length": (lambda f, at: flip(f, at[2] + 1), "length of a record is damaged", 2, 3),
    "empty": (lambda f, at: f.write_bytes(b""), "empty", 0, 5),
    "not a TFRecord file": (lambda f, at: f.write_bytes(TEXT), "not a TFRecord file", 0, 5),
    "gzip": (lambda f, at: f.write_bytes(gzip.compress(TEXT)), "gzip data; unpack it", 0, 5),
}
"""Damage that the lengths show: how it is done, what is reported, at which record, and how many
records are lost."""

LAPEL = imagenet_example(1, 2, 3).replace(b"label", b"lapel")
LATE_DAMAGE = {
    "flipped data": (lambda f, at: flip(f, at[2] + 15), "data of a record are damaged"),
    "label 6": (replace_record(imagenet_example(1, 2, 6)), "label 6 is outside the 5 classes"),
    "no Example": (replace_record(b"\xff" * len(LAPEL)), "not a tf.train.Example"),
    "no label": (replace_record(LAPEL), "no feature 'image/class/label'"),
    "cut since the start": (lambda f, at: os.truncate(f, at[2] + 17), "cut in the middle"),
    "gone since the start": (lambda f, at: f.unlink(), "No such file"),
}
"""Damage that only reading shows."""


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_that_the_lengths_show_is_one_line_with_file_and_offset(tmp_path, name):
    file = write_imagenet(tmp_path / "data") / "train-00001-of-00003"
    damage, words, record, _ = DAMAGE[name]
    at = offsets_of(file)
    damage(file, at)
    with pytest.raises(UserError) as error:
        build(tmp_path / "data")
    assert_one_line(error.value, file, words, f"offset {at[record]}")


@pytest.mark.parametrize("name", LATE_DAMAGE)
def test_damage_that_only_reading_shows_is_explained_with_file_and_offset(tmp_path, name):
    file = write_imagenet(tmp_path / "data") / "train-00001-of-00003"
    read = tf.function(build(tmp_path / "data").train.read)
    (damage, words), at = LATE_DAMAGE[name], offsets_of(file)
    damage(file, at)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        read(tf.constant([12, 7, 0, 5], tf.int64))
    offset = f"offset {at[2]}" if "since" not in name else ""
    assert_one_line(explain(error.value), file, words, offset)


@pytest.mark.parametrize("name", [*DAMAGE, *(name for name in LATE_DAMAGE if "since" not in name)])
def test_bad_records_are_skipped_if_asked_and_counted(tmp_path, name, capsys):
    file = write_imagenet(tmp_path / "data") / "train-00001-of-00003"
    (DAMAGE | LATE_DAMAGE)[name][0](file, offsets_of(file))
    lost = DAMAGE[name][3] if name in DAMAGE else 1
    data = Data(source="tfrecord", dir=str(tmp_path / "data"), skip_bad=True)
    first, second = (build_source(data, FROM_1) for _ in range(2))
    assert first.train.size == second.train.size == 15 - lost
    everything = tf.range(first.train.size, dtype=tf.int64)
    read = [source.train.read(everything)[0].numpy().tolist() for source in (first, second)]
    assert read[0] == read[1]
    assert_one_line(first.left_out[0], file)
    assert first.left_out == second.left_out
    if name in DAMAGE:
        with pytest.raises(UserError):  # without skipping
            build_source(dataclasses.replace(data, skip_bad=False), FROM_1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_key": "image/encode"}, "it has image/class/label, image/encoded"),
        ({"label_key": "label"}, "label-key"),
        ({"dir": ""}, "--data.dir"),
        ({"dir": "/nothing"}, "no folder /nothing"),
        ({"dir": "empty"}, "no shards"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path, monkeypatch, options, words):
    folder = write_imagenet(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        build(options.pop("dir", folder), **options)
    assert_one_line(error.value, words)
