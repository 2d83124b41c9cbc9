"""Folders of images, their conversion to TFRecords, and the check of both."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from rich.console import Console

from paceline.data.build import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats import convert as conversion
from paceline.formats.check import check
from paceline.formats.convert import convert
from paceline.formats.detect import describe_source, detect
from paceline.formats.image_file import inspect_image
from paceline.formats.reading import explain
from paceline.formats.tfrecord import example
from paceline.formats.tfrecord.frames import read_all

SHARED = Path(os.environ.get("PACELINE_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path_factory.mktemp("cache")))


def draw(seed, mode="RGB", kind="JPEG", size=(40, 30)):
    """A small image of soft noise, encoded."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR).convert(mode).save(stream, kind)
    return stream.getvalue()


def write_images(folder, per_class=6, test="val", classes=("ant", "bee", "cat")):
    for part, count in (("train", per_class), (test, 2)):
        for label, name in enumerate(classes):
            place = folder / part / name if part else folder / name
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (place / f"{name}-{part}-{number}.jpg").write_bytes(
                    draw(100 * label + number + (50 if part == test else 0))
                )
    return folder


def content_of(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*-of-*"))}


def records_of(folder, split="train"):
    found = []
    for file in sorted(folder.glob(f"{split}-*-of-*")):
        with file.open("rb") as stream:
            found += [
                example.decode(data) for _, data in read_all(stream, file.name, file.stat().st_size)
            ]
    return found


def read_all_of(split):
    raw, labels = tf.function(split.read)(tf.range(split.size, dtype=tf.int64))
    return sorted(zip(raw.numpy().tolist(), labels.numpy().tolist(), strict=True))


def assert_one_line(error, *parts):
    assert "\n" not in str(error)
    for part in parts:
        assert str(part) in str(error)


def unwrap(folder):
    """Leave one folder of classes."""
    shutil.rmtree(folder / "val")
    for place in list((folder / "train").iterdir()):
        place.rename(folder / place.name)
    (folder / "train").rmdir()


# Images as a source


@pytest.mark.parametrize("test", ["val", "validation", "test"])
def test_images_are_read_as_they_are_with_the_class_of_their_folder(tmp_path, test):
    folder = write_images(tmp_path / "data", test=test)
    source = build_source(Data(source="pictures", dir=str(folder)))
    assert (source.classes, source.image_shape) == (("ant", "bee", "cat"), None)
    for split, part in ((source.train, "train"), (source.test, test)):
        files = [
            (file.read_bytes(), source.classes.index(file.parent.name))
            for file in (folder / part).glob("*/*")
        ]
        assert read_all_of(split) == sorted(files)
    assert detect(folder) == "pictures"


def test_a_split_of_one_folder_is_the_same_whatever_else_lies_there(tmp_path):
    folder = write_images(tmp_path / "all", per_class=30) / "train"
    options = Data(source="pictures", dir=str(folder), split=0.2)
    before = build_source(options)
    held_out = set(read_all_of(before.test))
    assert 5 <= before.test.size <= 35
    assert not held_out & set(read_all_of(before.train))
    assert before.test.size + before.train.size == 90
    (folder / "ant" / "a new one.png").write_bytes(draw(999, kind="PNG"))
    assert held_out <= set(read_all_of(build_source(options).test))


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
        build_source(Data(**({"source": "pictures", "dir": str(folder)} | options)))
    assert_one_line(error.value, words)


def test_an_image_that_is_gone_is_named(tmp_path):
    folder = write_images(tmp_path / "data")
    source = build_source(Data(source="pictures", dir=str(folder)))
    (folder / "train" / "ant" / "ant-train-0.jpg").unlink()
    with pytest.raises(tf.errors.OpError) as error:
        tf.function(source.train.read)(tf.range(3, dtype=tf.int64))
    assert_one_line(explain(error.value), folder / "train" / "ant" / "ant-train-0.jpg")


# Inspecting


@pytest.mark.parametrize(
    ("mode", "kind", "channels", "colorspace"),
    [
        ("RGB", "JPEG", 3, "RGB"),
        ("L", "JPEG", 1, "Grayscale"),
        ("CMYK", "JPEG", 4, "CMYK"),
        ("RGB", "PNG", 3, "RGB"),
        ("RGBA", "PNG", 4, "RGB"),
        ("P", "PNG", 3, "RGB"),
        ("P", "GIF", 3, "RGB"),
        ("RGB", "BMP", 3, "RGB"),
        ("L", "BMP", 1, "Grayscale"),
        ("RGB", "WEBP", 3, "RGB"),
    ],
)
def test_facts_of_a_image(mode, kind, channels, colorspace):
    assert inspect_image(draw(1, mode, kind)) == (kind, 30, 40, channels, colorspace)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9, 0.97])
def test_a_image_that_is_cut_is_refused_as_tensorflow_refuses_it(kind, share):
    whole = draw(1, kind=kind, size=(200, 160))
    cut = whole[: int(len(whole) * share)]
    tf.io.decode_image(whole)
    with pytest.raises(tf.errors.OpError):
        tf.io.decode_image(cut)
    with pytest.raises(ValueError, match=r"."):
        inspect_image(cut)


def test_what_is_no_image_is_refused():
    for data in (b"", b"hello", b"GIF89a" + bytes(50), b"\xff\xd8\xff" + bytes(100)):
        with pytest.raises(ValueError, match=r"."):
            inspect_image(data)


# Converting


def test_converted_images_are_the_same_bytes_under_imagenets_names_and_keys(tmp_path):
    folder = write_images(tmp_path / "data")
    (folder / "train" / "bee" / "grey.jpeg").write_bytes(draw(7, "L"))
    (folder / "train" / "bee" / "print.JPG").write_bytes(draw(8, "CMYK"))
    (folder / "train" / "cat" / "is a PNG.jpg").write_bytes(draw(9, kind="PNG"))
    summary = convert(
        folder,
        tmp_path / "out",
        shards=2,
        validation_shards=1,
        processes=1,
        first_label=1,
        console=QUIET,
    )
    assert summary["records"] == {"train": 21, "validation": 6}
    names = {
        "train-00000-of-00002",
        "train-00001-of-00002",
        "validation-00000-of-00001",
        "labels.txt",
        "dataset.json",
    }
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    plain, converted = (
        build_source(Data(source=source, dir=str(place)))
        for source, place in (("pictures", folder), ("tfrecord", tmp_path / "out"))
    )
    assert plain.classes == converted.classes
    for split in ("train", "test"):
        assert read_all_of(getattr(plain, split)) == read_all_of(getattr(converted, split))
    record = next(
        record
        for record in records_of(tmp_path / "out")
        if record["image/filename"] == [b"print.JPG"]
    )
    assert record.pop("image/encoded") == [draw(8, "CMYK")]
    assert record == {
        "image/class/label": [2],
        "image/class/synset": [b"bee"],
        "image/class/text": [b"bee"],
        "image/channels": [4],
        "image/colorspace": [b"CMYK"],
        "image/filename": [b"print.JPG"],
        "image/format": [b"JPEG"],
        "image/height": [30],
        "image/width": [40],
    }


def test_any_number_of_processes_gives_the_same_bytes(tmp_path):
    folder = write_images(tmp_path / "data", per_class=9)
    (folder / "train" / "bee" / "bad.jpg").write_bytes(b"not an image")
    for processes in (1, 2):
        convert(
            folder,
            tmp_path / f"out{processes}",
            shards=5,
            validation_shards=2,
            processes=processes,
            console=QUIET,
        )
    one, two = tmp_path / "out1", tmp_path / "out2"
    assert len(content_of(one)) == 7
    assert content_of(one) == content_of(two)
    assert (one / "rejected.jsonl").read_bytes() == (two / "rejected.jsonl").read_bytes()


def test_bad_images_are_named_and_left_out(tmp_path):
    folder, said = write_images(tmp_path / "data"), io.StringIO()
    bad = {"cut.jpg": draw(1, size=(300, 200))[:-900], "empty.png": b"", "text.jpeg": b"hello"}
    for name, data in bad.items():
        (folder / "train" / "ant" / name).write_bytes(data)
    summary = convert(
        folder, tmp_path / "out", shards=2, processes=1, console=Console(file=said, width=500)
    )
    assert (summary["rejected"], summary["records"]["train"]) == (3, 18)
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    ]
    assert {line["file"] for line in lines} == {f"train/ant/{name}" for name in bad}
    assert all(line["reason"] for line in lines)
    assert "3 bad images" in said.getvalue()


def test_a_conversion_that_was_cut_off_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch):
    folder, out, written = write_images(tmp_path / "data"), tmp_path / "out", []
    (folder / "train" / "bee" / "bad.jpg").write_bytes(b"not an image")
    options = {"shards": 6, "validation_shards": 2, "processes": 1, "console": QUIET}
    whole = convert(folder, tmp_path / "whole", **options)
    encode = conversion._encode_image

    def fail_later(job, image):
        written.append(job.name)
        if len(written) == 11:
            raise KeyboardInterrupt
        return encode(job, image)

    monkeypatch.setattr(conversion, "_encode_image", fail_later)
    with pytest.raises(KeyboardInterrupt):
        convert(folder, out, **options)
    finished = content_of(out)
    assert 0 < len(finished) < 8
    assert all(
        content_of(tmp_path / "whole")[name] == content for name, content in finished.items()
    )
    assert not (out / "dataset.json").exists()
    (out / ".train-00005-of-00006.abc.tmp").write_bytes(b"what a killed process leaves")
    written[:] = [""] * 20
    summary = convert(folder, out, **options)
    assert not set(written) & set(finished)
    assert content_of(out) == content_of(tmp_path / "whole")
    assert {file.name for file in out.iterdir()} == {
        file.name for file in (tmp_path / "whole").iterdir()
    }
    assert summary == whole


def test_another_conversion_into_the_same_folder_is_refused(tmp_path, monkeypatch):
    folder, options = write_images(tmp_path / "data"), {"processes": 1, "console": QUIET}
    first = convert(folder, tmp_path / "out", shards=2, **options)
    assert convert(folder, tmp_path / "out", shards=2, **options) == first
    with pytest.raises(UserError) as error:
        convert(folder, tmp_path / "out", shards=3, **options)
    assert_one_line(error.value, "train_shards: 2 -> 3")
    (folder / "train" / "ant" / "new.jpg").write_bytes(draw(5))
    with pytest.raises(UserError) as error:
        convert(folder, tmp_path / "out", shards=2, **options)
    assert_one_line(error.value, "the images differ")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UserError, match="not empty"):
        convert(folder, tmp_path / "mine", **options)
    assert {file.name for file in (tmp_path / "mine").iterdir()} == {"letter.txt"}


@pytest.mark.parametrize("form", ["one class per line", "pairs", "csv"])
def test_the_flat_validation_folder_of_imagenet_takes_its_classes_from_the_label_file(
    tmp_path, form
):
    classes = ("n01440764", "n02102040", "n02979186")
    folder = write_images(tmp_path / "data", classes=classes)
    flat = {f"ILSVRC2012_val_{number:08d}.JPEG": classes[number * 2 % 3] for number in range(1, 7)}
    for file in (folder / "val").glob("*/*"):
        file.unlink()
    for name in classes:
        (folder / "val" / name).rmdir()
    for number, name in enumerate(flat):
        (folder / "val" / name).write_bytes(draw(number))
    lines = {
        "one class per line": list(flat.values()),
        "pairs": [f"{name} {found}" for name, found in flat.items()],
        "csv": [
            "ImageId,PredictionString",
            *(f"{name[:-5]},{found} 85 1 499 272" for name, found in flat.items()),
        ],
    }[form]
    (tmp_path / "labels").write_text("\n".join(lines) + "\n")
    (tmp_path / "words").write_text("n01440764\ttench, Tinca tinca\n")
    with pytest.raises(UserError, match="--labels-file"):
        convert(folder, tmp_path / "out", processes=1, console=QUIET)
    options = {
        "labels_file": str(tmp_path / "labels"),
        "names_file": str(tmp_path / "words"),
        "first_label": 1,
        "console": QUIET,
    }
    convert(folder, tmp_path / "out", processes=1, **options)
    found = {
        r["image/filename"][0].decode(): r["image/class/label"][0]
        for r in records_of(tmp_path / "out", "validation")
    }
    assert found == {name: classes.index(each) + 1 for name, each in flat.items()}
    texts = {
        r["image/class/synset"][0]: r["image/class/text"][0] for r in records_of(tmp_path / "out")
    }
    assert texts == {
        b"n01440764": b"tench, Tinca tinca",
        b"n02102040": b"n02102040",
        b"n02979186": b"n02979186",
    }


@pytest.mark.parametrize(
    ("lines", "words"),
    [(["ant"] * 5, "5 lines"), (["7"] * 6, "numbers are not taken"), (["x y"] * 6, "no class for")],
)
def test_a_label_file_that_does_not_fit_is_one_line(tmp_path, lines, words):
    folder = write_images(tmp_path / "data")
    for place in list((folder / "val").iterdir()):
        for file in list(place.iterdir()):
            file.rename(folder / "val" / file.name)
        place.rmdir()
    (tmp_path / "labels").write_text("\n".join(lines))
    with pytest.raises(UserError) as error:
        convert(folder, tmp_path / "out", labels_file=str(tmp_path / "labels"), console=QUIET)
    assert_one_line(error.value, words)


def test_imagenet_has_its_usual_shards_and_labels_from_1():
    from paceline.formats.conversion_inputs import ConversionInputs

    assert ConversionInputs(tuple(f"n{number:08d}" for number in range(1000)), {}).is_imagenet
    assert not ConversionInputs(tuple(f"n{number:08d}" for number in range(10)), {}).is_imagenet
    assert conversion.IMAGENET_SHARDS == {"train": 1024, "validation": 128}
    assert conversion._ranges("train", 1_281_167, 1024)[0] == ("train-00000-of-01024", (0, 1251))


def test_converted_cifar_reads_as_cifar_does(tmp_path):
    random = np.random.default_rng(0)
    for stem in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        rows = np.concatenate(
            [random.integers(0, 10, (8, 1)), random.integers(0, 256, (8, 3072))], axis=1
        )
        rows.astype(np.uint8).tofile(tmp_path / f"{stem}.bin")
    convert(tmp_path, tmp_path / "out", shards=3, console=QUIET)
    plain = build_source(Data(source="cifar10", dir=str(tmp_path)))
    converted = build_source(Data(source="tfrecord", dir=str(tmp_path / "out")))
    assert (plain.classes, plain.image_shape) == (converted.classes, converted.image_shape)
    for split in ("train", "test"):
        indices = tf.range(getattr(plain, split).size, dtype=tf.int64)
        for ours, theirs in zip(
            getattr(plain, split).read(indices),
            getattr(converted, split).read(indices),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)
    assert check(tmp_path / "out", processes=1).problems == ()


def test_more_shards_than_images_are_refused(tmp_path):
    with pytest.raises(UserError, match="give fewer"):
        convert(write_images(tmp_path / "data"), tmp_path / "out", shards=19, console=QUIET)


# Checking


def test_a_sound_folder_has_counts_and_no_problems(tmp_path):
    folder = write_images(tmp_path / "data")
    convert(folder, tmp_path / "out", processes=1, console=QUIET)
    for place, splits in ((folder, ("train", "test")), (tmp_path / "out", ("train", "validation"))):
        report = check(place, processes=1, console=QUIET)
        assert report.per_class == {splits[0]: [6, 6, 6], splits[1]: [2, 2, 2]}
        assert report.problems == ()
        assert report.lines()[-1] == "no problems"
    facts = describe_source(build_source(Data(source="tfrecord", dir=str(tmp_path / "out"))))
    assert facts["splits"]["train"]["per_class"] == [6, 6, 6]


def test_every_problem_is_listed_with_its_place(tmp_path):
    from paceline.formats.tfrecord.frames import framed

    folder = write_images(tmp_path / "data")
    convert(folder, tmp_path / "out", shards=2, processes=1, console=QUIET)
    file = tmp_path / "out" / "train-00000-of-00002"
    good = file.read_bytes()
    size, damaged = len(good), bytearray(good)
    damaged[100] ^= 1
    keys = ("image/encoded", "image/class/label")
    rows = [(draw(1)[:-300], 0), (draw(2), 3), (draw(3), -1)]
    file.write_bytes(
        bytes(damaged)
        + b"".join(framed(example.encode(dict(zip(keys, row, strict=True)))) for row in rows)
    )
    report = check(tmp_path / "out", processes=2, console=QUIET)
    assert len(report.problems) == 4
    assert sum(report.per_class["train"]) == 17
    for words, offset in (
        ("CRC", "offset 0"),
        ("cannot be decoded", f"offset {size}"),
        ("label 3", "offset"),
        ("label -1", "offset"),
    ):
        assert any(
            words in problem and offset in problem and str(file) in problem
            for problem in report.problems
        )
    (folder / "val" / "bee" / "bee-val-0.jpg").write_bytes(b"x")
    assert "bee-val-0.jpg" in check(folder, processes=1, console=QUIET).problems[0]


def test_other_sources_are_checked_by_reading_them(tmp_path):
    from paceline.formats.arrays import save_arrays

    save_arrays(tmp_path / "arrays", (np.zeros((20, 4, 4, 3), np.uint8), np.arange(20) % 2))
    assert sum(map(sum, check(tmp_path / "arrays").per_class.values())) == 20
    (tmp_path / "arrays" / "train_labels.npy").write_bytes(b"damaged")
    assert len(check(tmp_path / "arrays").problems) == 1


# Real images, where they are present


@pytest.mark.skipif(
    not (SHARED / "imagenette-mini").is_dir(),
    reason=f"no imagenette-mini in {SHARED}; set PACELINE_TEST_DATA",
)
def test_imagenette_is_converted_whole(tmp_path):
    folder = SHARED / "imagenette-mini"
    summary = convert(folder, tmp_path / "out", processes=1, console=QUIET)
    files = {part: len(list((folder / part).glob("*/*"))) for part in ("train", "val")}
    assert (summary["records"], summary["rejected"]) == (
        {"train": files["train"], "validation": files["val"]},
        0,
    )
    source = build_source(Data(source="tfrecord", dir=str(tmp_path / "out")))
    image = source.train.read(tf.constant([5], tf.int64))[0][0]
    assert tf.io.decode_jpeg(image, channels=3).shape[2] == 3


@pytest.mark.skipif(
    not (SHARED / "imagenet-samples").is_dir(),
    reason=f"no imagenet-samples in {SHARED}; set PACELINE_TEST_DATA",
)
def test_facts_of_real_images_are_those_that_tensorflow_decodes():
    for file in sorted((SHARED / "imagenet-samples").glob("*.JPEG")):
        facts, decoded = inspect_image(file.read_bytes()), tf.io.decode_jpeg(file.read_bytes())
        assert (facts.height, facts.width, facts.channels) == tuple(decoded.shape)
