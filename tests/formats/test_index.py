"""The index of TFRecords: kept, used again, and built again when it does not fit."""

import os

import numpy as np
import pytest
import tensorflow as tf

from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.tfrecord import index
from paceline.formats.tfrecord.index import FILE_NAME, ShardIndex, load_index
from paceline.formats.tfrecord.record import Shard, framed
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


@pytest.mark.parametrize("labels", [[], [4, 5]])
def test_an_index_is_read_as_it_was_saved(tmp_path, labels):
    shards = [Shard(f"/data/{name}", 10**8, "1") for name in ("a", "b")]
    parts = [
        ShardIndex(shards[0], np.arange(2) * 7, np.array(labels, np.int32), [(3, "bad")]),
        ShardIndex(shards[1], np.arange(2), np.array(labels, np.int32), []),
    ]
    index._save(str(tmp_path), b"these", parts)
    assert index._read_known(str(tmp_path), b"others", shards) == []
    for found, saved in zip(index._read_known(str(tmp_path), b"these", shards), parts, strict=True):
        assert (found.shard, found.faults) == (saved.shard, saved.faults)
        np.testing.assert_array_equal(found.offsets, saved.offsets)
        np.testing.assert_array_equal(found.labels, saved.labels)


def test_the_index_of_one_set_of_keys_is_not_taken_for_another(tmp_path):
    folder = write_imagenet(tmp_path / "data", labels_file=False)
    shards = find_shards(str(folder))["train"]
    parts = load_index(str(folder), shards, ("image/encoded", "image/class/label"))
    assert parts[0].labels.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="no feature 'label'"):
        load_index(str(folder), shards, ("image/encoded", "label"))
