"""Shards of TFRecords are found by their names."""

import pytest

from paceline.errors import UserError
from paceline.formats.detect import detect
from paceline.formats.tfrecord.shards import find_shards
from record_folders import write_imagenet

TENSOR2TENSOR = ["cifar10-train.tfrecord-00000-of-00001", "cifar10-test.tfrecord-00000-of-00001"]


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train-00000-of-00001", "validation-00000-of-00001"], {"train", "validation"}),
        (
            ["train.tfrecords", "validation.tfrecords", "eval.tfrecords"],
            {"train", "validation", "eval"},
        ),
        (TENSOR2TENSOR, {"train", "test"}),
        (["train-00000-of-00001.tfrecord.gz", "train", "test", "trains-00000-of-00001"], {"train"}),
    ],
)
def test_shards_are_known_by_their_names(tmp_path, names, splits):
    for name in names:
        (tmp_path / name).touch()
    assert find_shards(str(tmp_path)).keys() == splits


def test_a_missing_shard_is_named(tmp_path):
    folder = write_imagenet(tmp_path / "data")
    assert detect(folder) == "tfrecord"
    (folder / "train-00001-of-00003").unlink()
    with pytest.raises(UserError, match=r"2 of 3 .*train-00001-of-00003 is missing"):
        find_shards(str(folder))
