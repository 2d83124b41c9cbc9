"""What a folder contains, and how many examples of each class."""

import numpy as np
import pytest

from cifar_folders import write_binary, write_pickles
from paceline.data.build_source import build_source
from paceline.data.source import Source, in_memory
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats.arrays import save_arrays
from paceline.formats.detect import Description, describe_source, detect


def test_a_description_counts_every_label(tmp_path):
    labels = np.array([0, 0, 2] + [1] * 3000)
    test = np.zeros((5, 4, 4), np.uint8), np.arange(5) % 3
    save_arrays(tmp_path, (np.zeros((3003, 4, 4), np.uint8), labels), test, ["a", "bb", "c"])
    description = describe_source(build_source(Data(source="arrays", dir=str(tmp_path))))
    counts = {"train": [2, 3000, 1], "test": [2, 2, 1]}
    assert description == Description((4, 4, 1), ("a", "bb", "c"), counts)
    lines = description.lines()
    assert lines[0].endswith("4 x 4 x 1")
    assert lines[-2].split() == ["bb", "3,000", "2"]


def test_a_label_outside_the_classes_is_told():
    split = in_memory(np.zeros((3, 2, 2, 1), np.uint8), np.array([0, 1, 2]))
    with pytest.raises(UserError, match="there is a label 2; labels of 2 classes"):
        describe_source(Source(split, split, ("a", "b"), (2, 2, 1)))


def test_a_folder_of_no_or_two_kinds_is_not_guessed_at(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        detect(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no data set of a known kind"):
        detect(tmp_path)
    write_binary(tmp_path / "cifar-10-batches-bin", "cifar10")
    write_pickles(tmp_path / "cifar-100-python", "cifar100")
    with pytest.raises(UserError, match="several data sets: cifar10, cifar100"):
        detect(tmp_path)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_names_of_the_test_split_that_people_use(tmp_path, name):
    from paceline.formats.image_folder import find_images
    from paceline.formats.tfrecord.shards import train_and_test

    for split in ("train", name):
        folder = tmp_path / "pictures" / split / "cat"
        folder.mkdir(parents=True)
        (folder / "1.jpg").touch()
        (tmp_path / f"{split}.tfrecord").touch()
    assert len(find_images(tmp_path / "pictures", 0.0).test) == 1
    assert list(train_and_test(str(tmp_path))) == ["train", name]
