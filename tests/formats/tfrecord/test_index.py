"""The index of TFRecords: kept, used again, and built again when it does not fit."""

import os

import pytest
import tensorflow as tf

from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.tfrecord import index
from paceline.formats.tfrecord.index import FILE_NAME, load_index
from paceline.formats.tfrecord.record import framed
from paceline.formats.tfrecord.shards import find_shards
from record_folders import JPEG, imagenet_example, write_imagenet


def build(folder):
    return build_source(Data(source="tfrecord", dir=str(folder)), Records(first_label=1))


@pytest.mark.parametrize("is_writable", [True, False])
def test_the_index_is_kept_beside_the_data_or_in_the_cache_and_used_again(
    tmp_path, monkeypatch, is_writable
):
    folder = write_imagenet(tmp_path / "data")
    if not is_writable:
        (folder / FILE_NAME).mkdir()  # nothing can be renamed over a folder, not even by root
    build(folder)
    assert (folder / FILE_NAME).is_file() == is_writable
    assert bool(list(index.cache_folder().glob("index-*"))) != is_writable
    monkeypatch.setattr(index, "find_offsets", None)
    assert build(folder).train.size == 15


def test_the_index_is_built_again_when_a_shard_changes(tmp_path):
    folder = write_imagenet(tmp_path / "data")
    build(folder)
    (folder / "train-00001-of-00003").write_bytes(framed(imagenet_example(9, 0, 3)) * 2)
    source = build(folder)
    assert source.train.size == 12
    assert source.train.read(tf.constant([6], tf.int64))[0].numpy()[0] == JPEG + b"\x09"


def test_a_damaged_index_is_built_again(tmp_path):
    folder = write_imagenet(tmp_path / "data")
    build(folder)
    complete = (folder / FILE_NAME).read_bytes()
    middle = len(complete) // 2
    flipped = complete[:middle] + bytes([complete[middle] ^ 1]) + complete[middle + 1 :]
    for damaged in (b"", complete[:-3], flipped, os.urandom(300)):
        (folder / FILE_NAME).write_bytes(damaged)
        assert build(folder).train.size == 15
        assert len((folder / FILE_NAME).read_bytes()) == len(complete)


def test_the_index_of_one_set_of_keys_is_not_taken_for_another(tmp_path):
    folder = write_imagenet(tmp_path / "data", labels_file=False)
    shards = find_shards(str(folder))["train"]
    for _ in range(2):  # built, then read
        parts = load_index(str(folder), shards, ("image/encoded", "image/class/label"))
        assert [part.labels.tolist() for part in parts] == [[1, 2, 3, 4, 5]] * 3
    with pytest.raises(UserError, match="no feature 'label'"):
        load_index(str(folder), shards, ("image/encoded", "label"))
