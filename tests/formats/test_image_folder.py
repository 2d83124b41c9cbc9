"""Folders of images as a source, and what in them cannot be trained on."""

import shutil

import pytest
import tensorflow as tf

from image_folders import build, content_of, draw, write_images
from paceline.errors import UserError
from paceline.formats.detect import detect
from paceline.formats.image_folder import inspect_image
from paceline.formats.reading import explain
from record_folders import assert_one_line


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
        (lambda folder: (folder / "val").rename(folder / "values"), {}, "no val/"),
        (lambda folder: (folder / "val" / "dog").mkdir(), {}, "a class 'dog'"),
        (lambda folder: (folder / "train" / "dog").mkdir(), {}, "has no image"),
        (unwrap, {}, "--data.split"),
        (lambda folder: None, {"split": 0.5}, "already"),
        (lambda folder: None, {"split": 1.5}, "must be a share"),
        (lambda folder: None, {"skip_bad": True}, "paceline data convert"),
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
