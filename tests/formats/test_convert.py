"""Conversion to TFRecords: the same bytes on any number of processes, after any interruption."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from image_folders import content_of, convert_here, draw, flatten, write_images
from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats import convert
from paceline.formats.check import check
from paceline.formats.convert import divide, read_label_file
from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.record import read_all
from record_folders import assert_one_line


def shards_of(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*-of-*"))}


def records_of(folder, split="train"):
    return [
        record.decode(data)
        for name, content in shards_of(folder).items()
        if name.startswith(split)
        for _, data in read_all(io.BytesIO(content), name, len(content))
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
    plain = build_source(Data(source="pictures", dir=str(folder)))
    converted = build_source(Data(source="tfrecord", dir=str(out)))
    assert plain.classes == converted.classes
    assert content_of(plain.train) == content_of(converted.train)
    assert content_of(plain.test) == content_of(converted.test)
    (record,) = (each for each in records_of(out) if each["image/filename"] == [b"print.JPG"])
    assert record == {
        "image/encoded": [draw(8, "CMYK")],
        "image/class/label": [2],
        "image/class/synset": [b"bee"],
        "image/class/text": [b"bee"],
        "image/filename": [b"print.JPG"],
        "image/format": [b"JPEG"],
        "image/height": [30],
        "image/width": [40],
    }


def test_any_number_of_processes_gives_the_same_bytes(tmp_path):
    folder = write_images(tmp_path / "data", per_class=9)
    (folder / "train" / "bee" / "bad.jpg").write_bytes(b"not an image")
    one, two = tmp_path / "out1", tmp_path / "out2"
    for processes, out in ((1, one), (2, two)):
        convert_here(folder, out, processes, shards=5)
    assert len(shards_of(one)) == 6
    assert shards_of(one) == shards_of(two)
    assert (one / "rejected.jsonl").read_bytes() == (two / "rejected.jsonl").read_bytes()


def test_bad_images_are_named_and_left_out(tmp_path):
    folder, said = write_images(tmp_path / "data"), io.StringIO()
    bad = {"cut.jpg": draw(1, size=(300, 200))[:-900], "empty.png": b"", "text.jpeg": b"hello"}
    for name, data in bad.items():
        (folder / "train" / "ant" / name).write_bytes(data)
    console = Console(file=said, width=500)
    summary = convert_here(folder, tmp_path / "out", console=console, shards=2)
    assert (summary["rejected"], summary["records"]["train"]) == (3, 18)
    text = (tmp_path / "out" / "rejected.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["file"] for line in lines} == {f"train/ant/{name}" for name in bad}
    assert all(line["reason"] for line in lines)
    assert "3 bad images" in said.getvalue()


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
    assert_one_line(error.value, tmp_path / "out", "give a new folder")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UserError, match="not empty"):
        convert_here(folder, tmp_path / "mine")
    assert {file.name for file in (tmp_path / "mine").iterdir()} == {"letter.txt"}


def test_the_flat_validation_folder_of_imagenet_takes_its_classes_from_the_label_file(tmp_path):
    classes = ("n01440764", "n02102040", "n02979186")
    folder = write_images(tmp_path / "data", classes=classes)
    flatten(folder / "val")
    names = sorted(file.name for file in (folder / "val").iterdir())
    flat = {name: classes[number * 2 % 3] for number, name in enumerate(names)}
    (tmp_path / "labels").write_text("".join(f"{name} {found}\n" for name, found in flat.items()))
    convert_here(folder, tmp_path / "out", first_label=1, labels_file=str(tmp_path / "labels"))
    found = {
        record["image/filename"][0].decode(): record["image/class/label"][0]
        for record in records_of(tmp_path / "out", "validation")
    }
    assert found == {name: classes.index(each) + 1 for name, each in flat.items()}


FILES = {f"ILSVRC2012_val_{number:08d}.JPEG": f"n{number % 3:08d}" for number in range(1, 7)}


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([f"{name} {found}" for name, found in FILES.items()], id="pairs"),
        pytest.param(
            ["ImageId,PredictionString", *(f"{n[:-5]},{c} 85 1 499 272" for n, c in FILES.items())],
            id="csv",
        ),
    ],
)
def test_the_known_forms_of_label_files_are_read(tmp_path, lines):
    (tmp_path / "labels").write_text("\n".join(lines) + "\n")
    assert read_label_file(tmp_path / "labels", list(FILES)) == FILES


@pytest.mark.parametrize(
    ("line", "words"),
    [("{} 7", "no such folder"), ("x y", "no class for"), (None, "--labels-file")],
)
def test_a_label_file_that_does_not_fit_is_one_line(tmp_path, line, words):
    folder = write_images(tmp_path / "data")
    flatten(folder / "val")
    names = sorted(file.name for file in (folder / "val").iterdir())
    (tmp_path / "labels").write_text("\n".join((line or "").format(name) for name in names))
    labels_file = str(tmp_path / "labels") if line else ""
    with pytest.raises(UserError) as error:
        convert_here(folder, tmp_path / "out", labels_file=labels_file)
    assert_one_line(error.value, words)


def test_shards_are_chosen_by_the_number_of_images_or_given():
    shards = divide([range(1_281_167), range(50_000)], 0)
    assert shards["train-00000-of-01024"] == range(1251)
    assert len(shards) == 1024 + 48
    assert len(divide([range(500), range(50)], 0)) == 3 + 1
    for count in (-1, 19):
        with pytest.raises(UserError, match="give 1 to 18"):
            divide([range(18), range(9)], count)


def test_converted_cifar_reads_as_cifar_does(tmp_path):
    random = np.random.default_rng(0)
    for stem in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        labels, pixels = random.integers(0, 10, (8, 1)), random.integers(0, 256, (8, 3072))
        np.concatenate([labels, pixels], axis=1).astype(np.uint8).tofile(tmp_path / f"{stem}.bin")
    convert_here(tmp_path, tmp_path / "out", shards=3)
    plain = build_source(Data(source="cifar10", dir=str(tmp_path)))
    converted = build_source(Data(source="tfrecord", dir=str(tmp_path / "out")))
    assert (plain.classes, plain.image_shape) == (converted.classes, converted.image_shape)
    for ours, theirs in ((plain.train, converted.train), (plain.test, converted.test)):
        indices = tf.range(ours.size, dtype=tf.int64)
        for one, other in zip(ours.read(indices), theirs.read(indices), strict=True):
            np.testing.assert_array_equal(one, other)
    assert check(tmp_path / "out", processes=1).problems == ()
