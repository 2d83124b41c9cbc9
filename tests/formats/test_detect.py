"""What a folder contains, by the names of its files."""

import pytest

from cifar_folders import write_binary, write_pickles
from image_folders import build, convert_here, write_images
from paceline.errors import UserError
from paceline.formats.detect import detect
from paceline.formats.image_list import find_images
from paceline.formats.tfrecord.shards import find_splits


def test_a_folder_of_no_or_two_kinds_is_not_guessed_at(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        detect(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no data set of a known kind"):
        detect(tmp_path)
    write_binary(tmp_path / "cifar-10-batches-bin", "cifar10")
    write_pickles(tmp_path / "cifar-100-python", "cifar100")
    with pytest.raises(UserError, match="several data sets: cifar10, cifar100"):
        detect(tmp_path)


def test_without_a_folder_nothing_is_looked_for_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(write_images(tmp_path / "data"))
    with pytest.raises(UserError, match=r"the data has no folder; pass .* --data\.dir"):
        build("auto", "")
    with pytest.raises(UserError, match="shapes draws images"):
        build("shapes", tmp_path)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("photos.zip", "python -m zipfile -e"),
        ("mnist.npz", r"paceline\.train\(RECIPE, data="),
        ("train-images-idx3-ubyte", "offset=16"),
        ("train-images-idx3-ubyte.gz", "gunzip"),
    ],
)
def test_files_that_are_not_read_are_refused_with_the_line_that_converts_them(
    tmp_path, name, advice
):
    (tmp_path / name).touch()
    for given in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=f"has {name}, which cannot be read .*{advice}"):
            detect(given)


def test_a_folder_of_another_kind_than_the_recipe_expects_is_detected(tmp_path):
    convert_here(write_images(tmp_path / "data"), tmp_path / "records")
    assert build("cifar10", tmp_path / "records").train.size == 18
    assert build("tfrecord", tmp_path / "data").train.size == 18
    with pytest.raises(UserError, match="run `paceline data fetch cifar10"):
        build("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_names_of_the_test_split_that_people_use(tmp_path, name):
    _touch(tmp_path, "train", name)
    assert len(find_images(tmp_path / "pictures").splits["test"]) == 2
    assert list(find_splits(str(tmp_path))) == ["train", "test"]


def test_validation_is_validation_and_test_is_test(tmp_path):
    _touch(tmp_path, "train", "valid", "test")
    assert list(find_images(tmp_path / "pictures").splits) == ["train", "test", "validation"]
    shards = find_splits(str(tmp_path))
    assert shards["validation"][0].path.endswith("valid.tfrecord")
    assert shards["test"][0].path.endswith("test.tfrecord")
    _touch(tmp_path, "val")
    for find in (find_images, find_splits):
        with pytest.raises(UserError, match=r"va.* and va.*, both validation splits"):
            find(tmp_path / "pictures" if find is find_images else str(tmp_path))


@pytest.mark.parametrize("names", [("Train", "Val"), ("TRAINING", "Validation")])
def test_splits_are_found_in_any_case_and_in_folders_around_them(tmp_path, names):
    _touch(tmp_path / "photos" / "archive", *names)
    (tmp_path / "photos" / "__MACOSX").mkdir()
    found = find_images(tmp_path)
    assert found.root == tmp_path / "photos" / "archive" / "pictures"
    assert [len(images) for images in found.splits.values()] == [2, 2]
    assert detect(tmp_path / "photos" / "archive" / "pictures") == "pictures"
    assert detect(tmp_path / "photos") == "pictures"


def _touch(folder, *splits):
    """Write empty files that only have the names of a data set with two classes."""
    for split in splits:
        for name in ("cat", "dog"):
            place = folder / "pictures" / split / name
            place.mkdir(parents=True)
            (place / "1.jpg").touch()
        if folder.name != "archive":
            (folder / f"{split}.tfrecord").touch()
