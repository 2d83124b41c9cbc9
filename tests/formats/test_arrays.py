"""Arrays come back as they were given, and bad ones are refused before anything is written."""

import os

import numpy as np
import pytest

from image_folders import build, read_all
from paceline.errors import UserError
from paceline.formats.arrays import save_arrays, save_arrays_by_digest
from paceline.formats.detect import detect


def examples(count, shape=(8, 6, 3), classes=3, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, *shape), np.uint8), np.arange(count) % classes


def test_arrays_come_back_as_they_were_given(tmp_path):
    train, test = examples(20), examples(7, seed=1)
    save_arrays(tmp_path / "new" / "folder", train, test, ["a", "b", "c"])
    source = build("arrays", tmp_path / "new" / "folder")
    assert source.classes == ("a", "b", "c")
    assert source.image_shape == (8, 6, 3)
    for split, (images, labels) in ((source.train, train), (source.test, test)):
        raw, read_labels = read_all(split)
        np.testing.assert_array_equal(raw, images)
        np.testing.assert_array_equal(read_labels, labels)
        assert read_labels.dtype == np.int32
    assert detect(tmp_path / "new" / "folder") == "arrays"
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["folder"]


def test_grey_arrays_get_one_channel_and_classes_get_numbers(tmp_path):
    save_arrays(tmp_path, examples(5, (8, 6)), examples(5, (8, 6), classes=4))
    source = build("arrays", tmp_path)
    assert source.image_shape == (8, 6, 1)
    assert source.classes == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    "given", [lambda k: k[:, None], lambda k: np.eye(3)[k], lambda k: k.astype(np.float32)]
)
def test_labels_in_a_column_one_hot_or_float_are_numbers(tmp_path, given):
    images, labels = examples(20)
    save_arrays(tmp_path, (images, given(labels)), (images, given(labels)))
    assert read_all(build("arrays", tmp_path).test)[1].tolist() == labels.tolist()


def test_labels_may_be_the_names_of_classes(tmp_path):
    images, labels = examples(20)
    names = np.array(["bee", "cat", "ant"])[labels]
    folder = save_arrays_by_digest(tmp_path, (images, names), (images[:2], list(names[:2])))
    source = build("arrays", folder)
    assert source.classes == ("ant", "bee", "cat")
    assert [source.classes[label] for label in read_all(source.train)[1]] == names.tolist()
    assert read_all(source.test)[1].tolist() == [1, 2]
    assert save_arrays_by_digest(tmp_path, (images, names[::-1]), (images, names)) != folder


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_images_of_floats_from_0_to_1_and_of_other_whole_numbers_are_the_same_bytes(tmp_path, kind):
    images, labels = examples(20)
    given = images.astype(kind) if kind is np.int64 else (images / 255).astype(kind)
    save_arrays(tmp_path, (given, labels), (given, labels))
    np.testing.assert_array_equal(read_all(build("arrays", tmp_path).test)[0], images)


def test_without_test_arrays_a_tenth_is_held_out(tmp_path):
    images = np.arange(50, dtype=np.uint8).reshape(50, 1, 1) * np.ones((1, 2, 2), np.uint8)
    save_arrays(tmp_path, (images, np.repeat(range(5), 10)))
    source = build("arrays", tmp_path)
    assert (source.train.size, source.test.size) == (45, 5)
    seen = [read_all(split)[0][:, 0, 0, 0] for split in (source.train, source.test)]
    assert sorted(np.concatenate(seen)) == list(range(50))


IMAGES, LABELS = examples(4)


@pytest.mark.parametrize(
    ("train", "test", "classes", "message"),
    [
        ((IMAGES / 127.5 - 1, LABELS), None, None, "float64 from -1.0 to 1.0; give uint8 from 0"),
        ((IMAGES + 0.5, LABELS), None, None, "give uint8 from 0 to 255, or floats from 0 to 1"),
        ((IMAGES.astype(str), LABELS), None, None, "give uint8 from 0 to 255"),
        ((IMAGES[0, 0], LABELS), None, None, r"shape \(6, 3\)"),
        ((IMAGES[:0], LABELS[:0]), None, None, "one image or more"),
        ((IMAGES, LABELS[:3]), None, None, "4 train images and 3 train labels"),
        ((IMAGES, LABELS / 3), None, None, r"labels are float64 of shape \(4,\)"),
        ((IMAGES, np.full((4, 2), 0.5)), None, None, "or one-hot rows"),
        (
            (IMAGES, list("abca")),
            (IMAGES, list("abxa")),
            None,
            "contain 'x', which is not a label of",
        ),
        ((IMAGES, list("abca")), None, ["a", "b"], "contain 'c', which is not a class name"),
        ((IMAGES, LABELS - 1), None, None, "have a -1; labels count the classes from 0"),
        ((IMAGES, LABELS), (IMAGES[:, 1:], LABELS), None, "make their shapes alike"),
        ((IMAGES, LABELS), None, ["a", "b"], "go up to 2, but there are 2 class names"),
        ((IMAGES, LABELS), None, "abc", "list of one name per class"),
        (IMAGES, None, None, r"pair \(images, labels\)"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_before_anything_is_written(
    tmp_path, train, test, classes, message
):
    with pytest.raises(UserError, match=message):
        save_arrays(tmp_path / "data", train, test, classes)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_arrays_with_a_bad_file_names_it(tmp_path):
    with pytest.raises(UserError, match=r"--data\.dir"):
        build("arrays", "")
    with pytest.raises(UserError, match="no folder"):
        build("arrays", tmp_path / "nowhere")
    save_arrays(tmp_path, examples(20), examples(7))
    np.save(tmp_path / "test_labels.npy", np.array([{}] * 7), allow_pickle=True)
    with pytest.raises(UserError, match=r"test_labels\.npy is not a whole \.npy file of numbers"):
        build("arrays", tmp_path)
    (tmp_path / "test_labels.npy").unlink()
    with pytest.raises(UserError, match=r"no test_labels\.npy"):
        build("arrays", tmp_path)
    os.truncate(tmp_path / "train_images.npy", 1000)
    with pytest.raises(UserError, match=r"train_images\.npy is not a whole"):
        build("arrays", tmp_path)
