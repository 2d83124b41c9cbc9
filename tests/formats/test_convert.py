"""Conversion to TFRecords: the same bytes on any number of processes, after any interruption."""

import io
import json
from contextlib import redirect_stderr

import numpy as np
import pytest

from cifar_folders import write_binary
from image_folders import build, content_of, convert_here, draw, read_all, write_images
from paceline.errors import UserError
from paceline.formats import convert
from paceline.formats.check import check
from paceline.formats.convert import divide
from paceline.formats.tfrecord import record
from record_folders import assert_one_line


def shards_of(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*-of-*"))}


def records_of(folder, split="train"):
    return [
        record.decode(data)
        for name, content in shards_of(folder).items()
        if name.startswith(split)
        for _, data in record.read_all(io.BytesIO(content), name, len(content))
    ]


def test_converted_images_are_the_same_bytes_under_imagenets_names_and_keys(tmp_path):
    folder, out = write_images(tmp_path / "data"), tmp_path / "out"
    (folder / "train" / "bee" / "grey.jpeg").write_bytes(draw(7, "L"))
    (folder / "train" / "bee" / "print.JPG").write_bytes(draw(8, "CMYK"))
    (folder / "train" / "cat" / "is a PNG.jpg").write_bytes(draw(9, kind="PNG"))
    summary = convert_here(folder, out, shards=2, first_label=1)
    assert summary["records"] == {"train": 21, "validation": 6}
    shards = {"train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"}
    assert {file.name for file in out.iterdir()} == shards | {"labels.txt", "dataset.json"}
    plain, converted = build("pictures", folder), build("tfrecord", out)
    assert plain.classes == converted.classes
    assert content_of(plain.train) == content_of(converted.train)
    assert content_of(plain.test) == content_of(converted.test)
    (found,) = (each for each in records_of(out) if each["image/filename"] == [b"print.JPG"])
    assert found == {
        "image/encoded": [draw(8, "CMYK")],
        "image/class/label": [2],
        "image/class/synset": [b"bee"],
        "image/class/text": [b"bee"],
        "image/filename": [b"print.JPG"],
        "image/format": [b"JPEG"],
        "image/height": [30],
        "image/width": [40],
    }


def test_any_number_of_processes_gives_the_same_bytes_and_leaves_bad_images_out(tmp_path):
    folder = write_images(tmp_path / "data", per_class=9)
    bad = {"cut.jpg": draw(1, size=(300, 200))[:-900], "empty.png": b"", "text.jpeg": b"hello"}
    for name, data in bad.items():
        (folder / "train" / "ant" / name).write_bytes(data)
    one, two = tmp_path / "out1", tmp_path / "out2"
    for processes, out in ((1, one), (2, two)):
        with redirect_stderr(io.StringIO()) as said:
            summary = convert_here(folder, out, processes, shards=5)
        assert (summary["rejected"], summary["records"]["train"]) == (3, 27)
        assert "3 bad images" in said.getvalue()
    assert len(shards_of(one)) == 6
    assert shards_of(one) == shards_of(two)
    text = (one / "rejected.jsonl").read_text()
    assert text == (two / "rejected.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["file"] for line in lines} == {f"train/ant/{name}" for name in bad}
    assert all(line["reason"] for line in lines)


def test_an_interrupted_conversion_continues_and_ends_with_the_same_bytes(tmp_path, monkeypatch):
    folder, out, inspected = write_images(tmp_path / "data"), tmp_path / "out", []
    (folder / "train" / "bee" / "bad.jpg").write_bytes(b"not an image")
    settings = {"shards": 6}
    summary = convert_here(folder, tmp_path / "calm", **settings)
    calm, inspect = shards_of(tmp_path / "calm"), convert.inspect_image

    def interrupted(data):
        inspected.append(data)
        if len(inspected) == 11:
            raise KeyboardInterrupt
        return inspect(data)

    monkeypatch.setattr(convert, "inspect_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert_here(folder, out, **settings)
    finished = shards_of(out)
    assert 0 < len(finished) < 7
    assert finished.items() <= calm.items()
    assert not (out / "dataset.json").exists()
    (out / ".train-00005-of-00006.abc.tmp").write_bytes(b"what a killed process leaves")
    done = sum(len(records_of(out, split)) for split in ("train", "validation"))
    inspected[:] = [b""] * 20
    assert convert_here(folder, out, **settings) == summary
    assert len(inspected) - 20 in (25 - done, 25 - done - 1), "finished shards are not read again"
    assert shards_of(out) == calm
    assert {file.name for file in out.iterdir()} == {
        file.name for file in (tmp_path / "calm").iterdir()
    }


def test_a_different_conversion_into_the_same_folder_is_refused(tmp_path):
    folder = write_images(tmp_path / "data")
    first = convert_here(folder, tmp_path / "out", shards=2)
    assert convert_here(folder, tmp_path / "out", shards=2) == first
    with pytest.raises(UserError, match="a conversion of different images or settings"):
        convert_here(folder, tmp_path / "out", shards=3)
    (folder / "train" / "ant" / "new.jpg").write_bytes(draw(5))
    with pytest.raises(UserError) as error:
        convert_here(folder, tmp_path / "out", shards=2)
    assert_one_line(error.value, tmp_path / "out", "choose a new folder")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UserError, match="not empty"):
        convert_here(folder, tmp_path / "mine")
    assert {file.name for file in (tmp_path / "mine").iterdir()} == {"letter.txt"}


def test_shards_are_chosen_by_the_number_of_images_or_given():
    shards = divide({"train": range(1_281_167), "test": range(50_000)}, 0)
    assert shards["train-00000-of-01024"] == range(1251)
    assert len(shards) == 1024 + 48
    assert len(divide({"train": range(500), "test": range(50)}, 0)) == 3 + 1
    for count in (-1, 19):
        with pytest.raises(UserError, match="give 1 to 18"):
            divide({"train": range(18), "test": range(9)}, count)


def test_converted_cifar_reads_as_cifar_does(tmp_path):
    write_binary(tmp_path, "cifar10")
    convert_here(tmp_path, tmp_path / "out", shards=3)
    plain, converted = build("cifar10", tmp_path), build("tfrecord", tmp_path / "out")
    assert (plain.classes, plain.image_shape) == (converted.classes, converted.image_shape)
    for ours, theirs in ((plain.train, converted.train), (plain.test, converted.test)):
        for one, other in zip(read_all(ours), read_all(theirs), strict=True):
            np.testing.assert_array_equal(one, other)
    assert check(tmp_path / "out", processes=1).problems == ()
