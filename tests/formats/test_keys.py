"""Keys and labels of TFRecords that do not fit: the flag to give is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from in_process import paceline_here
from paceline.data.build_source import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from record_folders import write_imagenet


def test_labels_from_1_are_noticed(tmp_path: Path):
    folder = write_imagenet(tmp_path / "records", labels_file=False)
    data = Data(source="tfrecord", dir=str(folder), image_size=8)
    with pytest.raises(UserError, match=r"labels are 1 to 5, and no record has the label 0; give"):
        build_source(data)
    assert len(build_source(data, Records(first_label=1)).classes) == 5
    assert len(build_source(data, Records(first_label=0)).classes) == 6
    (folder / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    checked = paceline_here("data", "check", str(folder), cwd=tmp_path)
    assert "if labels count from 1, give --records.first-label 1" in checked.out + checked.err


def test_a_wrong_key_names_the_flag_and_the_file_that_was_given(tmp_path: Path):
    folder = write_imagenet(tmp_path / "records", labels_file=False)
    for file in list(folder.iterdir()):
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    for key, flag in (("image_key", "--records.image-key"), ("label_key", "--records.label-key")):
        data = Data(source="tfrecord", dir=str(folder), image_size=8)
        with pytest.raises(UserError) as error:
            build_source(data, Records(**{key: "no/such"}))
        assert flag in str(error.value)
        assert "image/encoded" in str(error.value), "which keys there are"
        assert str(folder / "train-00000-of-00003.gz") in str(error.value)
        assert "cache" not in str(error.value)
