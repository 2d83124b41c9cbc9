"""Folders of images as a source, and what in them cannot be trained on."""

import shutil

import pytest
import tensorflow as tf

from image_folders import build, content_of, convert_here, draw, write_images
from in_process import paceline_here
from paceline.data.source import hold_out
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats import image_folder
from paceline.formats.check import check
from paceline.formats.detect import detect
from paceline.formats.image_folder import inspect_image
from paceline.formats.reading import explain
from record_folders import assert_one_line, write_imagenet


def unwrap(folder):
    """Leave one folder of classes."""
    shutil.rmtree(folder / "val")
    for place in list((folder / "train").iterdir()):
        place.rename(folder / place.name)
    (folder / "train").rmdir()


@pytest.mark.parametrize("test", ["val", "validation", "test"])
def test_images_are_read_as_they_are_with_the_class_of_their_folder(tmp_path, test):
    folder = write_images(tmp_path / "data", test=test)
    source = build("pictures", folder)
    assert (source.classes, source.image_shape) == (("ant", "bee", "cat"), None)
    for split, part in ((source.train, "train"), (source.test, test)):
        files = [
            (file.read_bytes(), source.classes.index(file.parent.name))
            for file in (folder / part).glob("*/*")
        ]
        assert content_of(split) == sorted(files)
    assert detect(folder) == "pictures"


def test_a_split_of_one_folder_is_the_same_whatever_else_is_there(tmp_path):
    folder = write_images(tmp_path / "all", per_class=30) / "train"
    before = build("pictures", folder, split=0.2)
    held_out = set(content_of(before.test))
    assert 5 <= before.test.size <= 35
    assert not held_out & set(content_of(before.train))
    assert before.test.size + before.train.size == 90
    (folder / "ant" / "a new one.png").write_bytes(draw(999, kind="PNG"))
    assert held_out <= set(content_of(build("pictures", folder, split=0.2).test))


@pytest.mark.parametrize(
    ("spoil", "options", "words"),
    [
        (lambda folder: (folder / "val").rename(folder / "values"), {}, "no test split (test/"),
        (lambda folder: shutil.rmtree(folder / "train" / "cat"), {}, "a class 'cat' that train/"),
        (lambda folder: (folder / "val" / "dog").mkdir(), {}, "a class 'dog'"),
        (lambda folder: (folder / "train" / "dog").mkdir(), {}, "has no image"),
        (unwrap, {}, "--data.split"),
        (lambda folder: None, {"split": 0.5}, "already"),
        (lambda folder: None, {"split": 1.5}, "must be a share"),
        (lambda folder: None, {"dir": "/nowhere"}, "there is no folder"),
        (lambda folder: None, {"dir": ""}, "--data.dir"),
    ],
)
def test_a_wrong_structure_is_one_line(tmp_path, spoil, options, words):
    folder = write_images(tmp_path / "data")
    spoil(folder)
    with pytest.raises(UserError) as error:
        build("pictures", options.pop("dir", folder), **options)
    assert_one_line(error.value, words)


def test_an_image_that_is_gone_is_named(tmp_path):
    folder = write_images(tmp_path / "data")
    source = build("pictures", folder)
    (folder / "train" / "ant" / "ant-train-0.jpg").unlink()
    with pytest.raises(tf.errors.OpError) as error:
        tf.function(source.train.read)(tf.range(3, dtype=tf.int64))
    assert_one_line(explain(error.value), folder / "train" / "ant" / "ant-train-0.jpg")
    assert explain(ValueError("something else")) is None


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("P", "GIF"), ("L", "BMP"), ("RGB", "WEBP")],
)
def test_facts_of_an_image(mode, kind):
    assert inspect_image(draw(1, mode, kind)) == (kind, 30, 40)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.6, 0.97])
def test_an_image_that_is_cut_is_refused_as_tensorflow_refuses_it(kind, share):
    complete = draw(1, kind=kind, size=(200, 160))
    cut = complete[: int(len(complete) * share)]
    tf.io.decode_image(complete)
    with pytest.raises(tf.errors.OpError):
        tf.io.decode_image(cut)
    with pytest.raises(ValueError, match=r"."):
        inspect_image(cut)


def test_what_an_archive_of_macos_adds_is_not_a_class(tmp_path):
    folder = write_images(tmp_path / "data")
    (folder / "__MACOSX" / "train").mkdir(parents=True)
    (folder / "train" / "__MACOSX").mkdir()
    assert build("pictures", tmp_path).classes == ("ant", "bee", "cat")


def test_one_class_is_refused(tmp_path):
    folder = write_images(tmp_path / "data", classes=("images",)) / "train"
    (folder / "labels.txt").write_text("no table")
    for place, split in ((tmp_path / "data", 0.0), (folder, 0.0), (folder, 0.2)):
        with pytest.raises(UserError, match="one class folder, 'images'; there must be one folder"):
            build("pictures", place, split=split)
        assert "one class folder" in check(place, split, processes=1).problems[0]
    write_imagenet(tmp_path / "records", num_classes=1)
    with pytest.raises(UserError, match="there must be two or more"):
        build("tfrecord", tmp_path / "records")


def test_a_data_set_with_three_splits_is_validated_on_its_own_split(tmp_path):
    folder = write_images(tmp_path / "data")
    write_images(folder, test="test")
    (folder / "test" / "ant" / "ant-test-0.jpg").unlink()
    source = build("pictures", folder)
    assert (source.train.size, source.test.size, source.validation.size) == (18, 5, 6)
    assert hold_out(source, 5) == (source.train, source.validation)
    convert_here(folder, tmp_path / "out")
    assert content_of(build("tfrecord", tmp_path / "out").validation) == content_of(
        source.validation
    )
    for place in (folder, tmp_path / "out"):
        assert check(place, processes=1).per_class["validation"] == [2, 2, 2]


def test_damaged_images_are_left_out_if_asked_and_found_only_once(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "data")
    bad = folder / "train" / "bee" / "bee-train-1.jpg"
    bad.write_bytes(bad.read_bytes()[:-300])
    (folder / "val" / "cat" / "cat-val-0.jpg").write_bytes(b"x")
    first = build("pictures", folder, skip_bad=True)
    assert (first.train.size, first.test.size) == (17, 5)
    assert_one_line(first.left_out[0], bad, "cannot be decoded")
    assert len(first.left_out) == 2
    monkeypatch.setattr(image_folder, "inspect_image", None)  # what was found is kept
    assert build("pictures", folder, skip_bad=True).left_out == first.left_out


def test_the_first_line_counts_the_images_that_are_left_out(tmp_path):
    folder = write_images(tmp_path / "data")
    (folder / "train" / "ant" / "ant-train-0.jpg").write_bytes(b"x")
    small = "--data.image-size 16 --model.layout cifar --model.depth 8 --global-batch-size 8"
    flags = ("--data.dir", "data", "--data.skip-bad", *small.split(), "--dry-run")
    ended = paceline_here("train", "my-images", *flags, cwd=tmp_path)
    assert "17 train, 6 test examples of 3 classes (bad ones left out: 1) · " in ended.out


def test_an_image_that_cannot_be_decoded_in_training_is_named(tmp_path):
    folder = write_images(tmp_path / "data")
    bad = folder / "train" / "cat" / "cat-train-1.jpg"
    bad.write_bytes(bad.read_bytes()[:-300])
    with pytest.raises(tf.errors.OpError) as error:
        tf.io.decode_image(bad.read_bytes())
    found = explain(error.value, Data(source="auto", dir=str(folder)))
    assert_one_line(found, bad, "--data.skip-bad")
    assert_one_line(explain(error.value), "paceline data check DIR")
