"""What a folder contains, by the names of its files."""

import pytest

from cifar_folders import write_binary, write_pickles
from paceline.errors import UserError
from paceline.formats.detect import detect
from paceline.formats.image_folder import find_images
from paceline.formats.tfrecord.shards import train_and_test


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
    for split in ("train", name):
        folder = tmp_path / "pictures" / split / "cat"
        folder.mkdir(parents=True)
        (folder / "1.jpg").touch()
        (tmp_path / f"{split}.tfrecord").touch()
    assert len(find_images(tmp_path / "pictures", 0.0).test) == 1
    assert list(train_and_test(str(tmp_path))) == ["train", name]
