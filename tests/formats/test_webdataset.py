"""Tars of images in the layout of WebDataset, read in place."""

import io
import json
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.check import check
from paceline.formats.detect import detect
from paceline.formats.reading import explain
from small_images import encode


def picture(number):
    return encode(np.full((9, 9, 3), number, np.uint8))


def write_tar(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_shards(folder, label=lambda number: {"cls": str(number % 3).encode()}):
    """Write two train tars of six images and a test tar of three."""
    for name, numbers in (("train-00", range(6)), ("train-01", range(6, 12)), ("val-00", range(3))):
        files = {}
        for number in numbers:
            files[f"{number:04d}.png"] = picture(number)
            files |= {f"{number:04d}.{ending}": text for ending, text in label(number).items()}
        write_tar(folder / f"{name}.tar", files)
    return folder


def build(folder, **options):
    return build_source(Data(source="auto", dir=str(folder), **options))


def content_of(split):
    images, labels = tf.function(split.read)(tf.range(split.size, dtype=tf.int64))
    return images.numpy().tolist(), labels.numpy().tolist()


def test_tars_are_found_and_read_in_any_order_with_their_labels(tmp_path):
    source = build(write_shards(tmp_path / "data"))
    assert detect(tmp_path / "data") == "webdataset"
    assert (source.train.size, source.test.size, source.classes) == (12, 3, ("0", "1", "2"))
    order = np.random.default_rng(0).permutation(12)
    images, labels = tf.function(source.train.read)(tf.constant(order))
    assert images.numpy().tolist() == [picture(number) for number in order]
    assert labels.numpy().tolist() == (order % 3).tolist()
    assert source.train.labels(tf.constant(order)).numpy().tolist() == (order % 3).tolist()


@pytest.mark.parametrize(
    "label",
    [
        lambda number: {"cls": b"abc"[number % 3 : number % 3 + 1] + b"\n"},
        lambda number: {"json": json.dumps({"label": "abc"[number % 3]}).encode(), "txt": b"seen"},
    ],
)
def test_labels_may_be_names_in_cls_or_json_files(tmp_path, label):
    source = build(write_shards(tmp_path / "data", label))
    assert source.classes == ("a", "b", "c")
    assert content_of(source.test) == ([picture(number) for number in range(3)], [0, 1, 2])


def test_the_folders_in_a_tar_are_classes_where_images_stand_alone(tmp_path):
    files = {f"photos/{'cat' if n % 2 else 'dog'}/{n}.png": picture(n) for n in range(20)}
    write_tar(tmp_path / "photos.tar", files)
    with pytest.raises(UserError, match=r"only train.*--data\.split 0\.1 holds out a tenth"):
        build(tmp_path)
    source = build(tmp_path, split=0.2)
    assert (source.train.size, source.test.size, source.classes) == (16, 4, ("cat", "dog"))
    assert sorted(content_of(source.train)[0] + content_of(source.test)[0]) == sorted(
        files.values()
    )


def test_splits_are_told_by_folders_and_labels_txt_names_classes_that_count_from_1(tmp_path):
    for split, count in (("train", 4), ("validation", 2), ("test", 2)):
        files = {}
        for n in range(count):
            files |= {f"{n}.png": picture(n), f"{n}.cls": str(n % 2 + 1).encode()}
        write_tar(tmp_path / split / "0000.tar", files)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    source = build(tmp_path)
    assert source.classes == ("cat", "dog")
    assert content_of(source.validation)[1] == [0, 1]
    assert [source.train.size, source.test.size] == [4, 2]


def test_the_index_is_written_once_and_again_if_a_tar_changes(tmp_path):
    folder = write_shards(tmp_path / "data")
    first = build(folder).digest
    index = folder / ".paceline-index.npz"
    written = index.stat().st_mtime_ns
    assert build(folder).digest == first
    assert index.stat().st_mtime_ns == written
    write_shards(folder, lambda number: {"cls": str((number + 1) % 3).encode()})
    assert build(folder).digest != first


def test_a_tar_that_changes_during_training_is_named(tmp_path):
    source = build(write_shards(tmp_path / "data"))
    tar = tmp_path / "data" / "train-01.tar"
    tar.write_bytes(tar.read_bytes()[:2000])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        source.train.read(tf.constant([7], tf.int64))
    assert str(tar) in str(explain(caught.value))
    assert "now has 2,000" in str(explain(caught.value))


def cut(tar):
    tar.write_bytes(tar.read_bytes()[:3000])


def cut_between_files(tar):
    with tarfile.open(tar) as opened:
        end = opened.getmembers()[4].offset
    tar.write_bytes(tar.read_bytes()[:end])


def damage_a_header(tar):
    with tarfile.open(tar) as opened:
        start = opened.getmembers()[4].offset
    content = bytearray(tar.read_bytes())
    content[start + 130] ^= 255
    tar.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "the tar is damaged"),
        (cut_between_files, "does not end here"),
        (damage_a_header, "does not end here"),
        (lambda tar: tar.write_bytes(b""), "empty"),
        (lambda tar: tar.write_bytes(b"\x1f\x8b" + bytes(600)), "gzip data; unpack it"),
        (lambda tar: write_tar(tar, {"0.png": picture(0)}), "no label"),
        (lambda tar: write_tar(tar, {"0.png": b"", "0.cls": b"1"}), "the file is empty"),
        (lambda tar: write_tar(tar, {"0.png": picture(0), "0.json": b"[" * 9999}), "no label"),
        (lambda tar: write_tar(tar, {"n01440764.tar": bytes(9)}), "no image"),
    ],
)
def test_a_damaged_tar_is_an_error_that_names_it_or_is_left_out(tmp_path, damage, reason):
    folder = write_shards(tmp_path / "data")
    damage(folder / "train-01.tar")
    with pytest.raises(UserError, match=rf"train-01\.tar, offset \d+: .*{reason}"):
        build(folder)
    source = build(folder, skip_bad=True)
    assert 6 <= source.train.size < 12
    assert any(reason in line for line in source.left_out)
    report = check(folder, processes=1)
    assert any("train-01.tar" in line and reason in line for line in report.problems)


def test_a_damaged_image_is_found_by_the_check_and_left_out(tmp_path):
    folder = write_shards(tmp_path / "data")
    write_tar(
        folder / "val-00.tar",
        {"a.png": picture(1)[:45], "a.cls": b"0"}
        | {"b.png": picture(2), "b.cls": b"9", "c.png": picture(3), "c.cls": b"1"},
    )
    problems = check(folder, records=Records(first_label=0), processes=1).problems
    assert any("val-00.tar, offset 512: the image cannot be decoded" in line for line in problems)
    (folder / "labels.txt").write_text("a\nb\nc\n")
    source = build(folder, skip_bad=True)
    assert content_of(source.test) == ([picture(3)], [1])
    assert len(source.left_out) == 2
