"""Parquet files with the bytes of images, in the layout of Hugging Face."""

import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.check import check
from paceline.formats.detect import detect
from small_images import encode

ANY = Records()
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog", "pug"], "_type": "ClassLabel"},
}


def picture(number):
    return encode(np.full((9, 9, 3), number, np.uint8))


def write(path, images, labels, features=None, struct=True, image="image", label="label"):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": each, "path": f"{n}.png"} for n, each in enumerate(images)]
    table = pa.table({image: rows if struct else images, label: labels})
    if features:
        notes = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": notes})
    parquet.write_table(table, path, row_group_size=3)


def write_data_set(folder):
    """Write two files to train on and one to test on, as a data set repository has them."""
    for n in range(2):
        numbers = range(5 * n, 5 * n + 5)
        file = folder / "data" / f"train-0000{n}-of-00002.parquet"
        write(file, [picture(k) for k in numbers], [k % 3 for k in numbers], FEATURES)
    test = folder / "data" / "validation-00000-of-00001-1a2b3c4d5e6f.parquet"
    write(test, [picture(k) for k in range(3)], [0, 1, 2], FEATURES)
    return folder


def build(folder, records=ANY, **options):
    return build_source(Data(source="auto", dir=str(folder), **options), records)


def content_of(split):
    images, labels = split.read(tf.range(split.size, dtype=tf.int64))
    return images.numpy().tolist(), labels.numpy().tolist()


def test_a_data_set_of_hugging_face_is_found_and_read_with_its_class_names(tmp_path):
    folder = write_data_set(tmp_path / "set")
    assert detect(folder) == "parquet"
    source = build(folder)
    assert source.classes == ("cat", "dog", "pug")
    assert content_of(source.train) == ([picture(k) for k in range(10)], [k % 3 for k in range(10)])
    assert content_of(source.test) == ([picture(k) for k in range(3)], [0, 1, 2])
    report = check(folder, processes=1)
    assert report.per_class == {"train": [4, 3, 3], "validation": [1, 1, 1]}


def test_the_images_are_unpacked_once_and_again_if_a_file_changes(tmp_path, monkeypatch):
    folder = write_data_set(tmp_path / "set")
    first = build(folder).digest
    with monkeypatch.context() as patch:
        patch.setattr("paceline.formats.parquet.write", None)
        assert build(folder).digest == first
    file = folder / "data" / "train-00000-of-00002.parquet"
    write(file, [picture(9)] * 5, [0] * 5, FEATURES)
    assert build(folder).digest != first


def test_names_as_labels_plain_bytes_and_one_file_are_read_too(tmp_path):
    labels = ["dog", "cat"] * 10
    write(tmp_path / "all.parquet", [picture(k) for k in range(20)], labels, struct=False)
    with pytest.raises(UserError, match=rf"^{tmp_path} has only train.*--data\.split"):
        build(tmp_path)
    source = build(tmp_path, split=0.25)
    assert (source.classes, source.train.size, source.test.size) == (("cat", "dog"), 15, 5)


def test_test_images_without_labels_are_not_a_split(tmp_path):
    folder = write_data_set(tmp_path)
    write(folder / "data" / "test-00000-of-00001.parquet", [picture(1)] * 2, [-1, -1], FEATURES)
    source = build(folder)
    assert (source.test.size, source.validation) == (3, None)


def test_two_columns_of_labels_need_a_flag(tmp_path):
    features = {"img": {"_type": "Image"}} | {
        name: {"names": ["a", "b"], "_type": "ClassLabel"} for name in ("fine", "coarse")
    }
    table = pa.table({"img": [picture(0)] * 4, "fine": [0, 1] * 2, "coarse": [1, 0] * 2})
    table = table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    parquet.write_table(table, tmp_path / "train.parquet")
    parquet.write_table(table, tmp_path / "test.parquet")
    with pytest.raises(UserError, match=r"img, fine, coarse; pass --records\.label-key"):
        build(tmp_path)
    source = build(tmp_path, Records(label_key="coarse"))
    assert content_of(source.train)[1] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("image", "label", "reason"),
    [
        (b"not an image", 1, "not a JPEG"),
        (None, 1, "there is no image"),
        (picture(1), None, "label None is not one of the 3 classes"),
        (picture(1), 7, "label 7 is not one of the 3 classes"),
    ],
)
def test_a_bad_row_is_named_and_left_out(tmp_path, image, label, reason):
    folder = write_data_set(tmp_path)
    file = folder / "data" / "train-00001-of-00002.parquet"
    images, labels = [picture(k) for k in range(4)], [0, 1, 2, 0]
    write(file, [*images, image], [*labels, label], FEATURES)
    with pytest.raises(UserError, match=rf"{file}, row 4: .*{reason}.*--data\.skip-bad"):
        build(folder)
    source = build(folder, skip_bad=True)
    assert source.train.size == 9
    assert len(source.left_out) == 1
    assert any(reason in line for line in check(folder, processes=1).problems)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_file_is_named(tmp_path, content):
    folder = write_data_set(tmp_path)
    file = folder / "data" / "train-00001-of-00002.parquet"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"{file} is not a whole Parquet file"):
        build(folder)
    file.write_bytes((folder / "data" / "train-00000-of-00002.parquet").read_bytes()[:-9])
    with pytest.raises(UserError, match=rf"{file} is not a whole Parquet file"):
        build(folder)
    file.unlink()
    with pytest.raises(UserError, match=r"1 of 2 train shards; train-00001-of-00002 is missing"):
        build(folder)
