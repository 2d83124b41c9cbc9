"""`paceline data check` counts every good example and lists every bad one."""

import numpy as np

from image_folders import build, convert_here, draw, write_images
from paceline.formats.arrays import save_arrays
from paceline.formats.check import DataReport, check, describe
from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.record import framed


def test_a_sound_folder_has_counts_and_no_problems(tmp_path):
    folder = write_images(tmp_path / "data")
    convert_here(folder, tmp_path / "out")
    for place, splits in ((folder, ("train", "test")), (tmp_path / "out", ("train", "validation"))):
        report = check(place, processes=1)
        assert report.per_class == {splits[0]: [6, 6, 6], splits[1]: [2, 2, 2]}
        assert report.problems == ()


def test_every_problem_is_listed_with_its_file_and_offset(tmp_path):
    folder = write_images(tmp_path / "data")
    convert_here(folder, tmp_path / "out", shards=2)
    file = tmp_path / "out" / "train-00000-of-00002"
    damaged = bytearray(file.read_bytes())
    damaged[100] ^= 1
    rows = [(draw(1)[:-300], 0), (draw(2), 3), (draw(3), -1)]
    records = [
        framed(record.encode({"image/encoded": image, "image/class/label": label}))
        for image, label in rows
    ]
    file.write_bytes(b"".join([damaged, *records]))
    report = check(tmp_path / "out", processes=2)
    assert len(report.problems) == 4
    assert sum(report.per_class["train"]) == 17
    for words, offset in (
        ("CRC", "offset 0"),
        ("cannot be decoded", f"offset {len(damaged)}"),
        ("label 3", "offset"),
        ("label -1", "offset"),
    ):
        (line,) = (problem for problem in report.problems if words in problem)
        assert offset in line
        assert str(file) in line
    (folder / "val" / "bee" / "bee-val-0.jpg").write_bytes(b"x")
    assert "bee-val-0.jpg" in check(folder, processes=1).problems[0]


def test_other_sources_are_checked_by_reading_them(tmp_path):
    labels = np.array([0, 0, 2] + [1] * 3000)
    test = np.zeros((5, 4, 4), np.uint8), np.arange(5) % 3
    save_arrays(tmp_path, (np.zeros((3003, 4, 4), np.uint8), labels), test, ["a", "bb", "c"])
    report = describe(build("arrays", tmp_path))
    assert report == DataReport(("a", "bb", "c"), {"train": [2, 3000, 1], "test": [2, 2, 1]})
    assert report.table()[2].split() == ["bb", "3,000", "2"]
    assert check(tmp_path) == report
    (tmp_path / "train_labels.npy").write_bytes(b"damaged")
    assert len(check(tmp_path).problems) == 1


def test_what_is_unusual_is_a_note_and_an_empty_class_does_not_end_the_check(tmp_path):
    folder = write_images(tmp_path / "data")
    (folder / "train" / "dog").mkdir()
    (folder / "train" / "ant" / "scan.tif").touch()
    (folder / "train" / "ant" / "deeper").mkdir()
    (folder / "train" / "bee" / "bee-train-1.jpg").write_bytes(draw(1)[:-300])
    report = check(folder, processes=1)
    assert report.per_class["train"] == [6, 5, 6, 0]
    assert len(report.problems) == 2
    assert report.notes == (
        "classes with fewer than 2 train images (1): dog",
        "classes with fewer than 1 test images (1): dog",
        "2 entries of class folders are not images and left out: .tif (1), folders (1)",
    )


def test_an_image_in_two_splits_is_a_problem(tmp_path):
    folder = write_images(tmp_path / "data")
    (folder / "val" / "bee" / "copy.jpg").write_bytes(
        (folder / "train" / "ant" / "ant-train-0.jpg").read_bytes()
    )
    convert_here(folder, tmp_path / "out")
    (problem,) = check(folder, processes=1).problems
    assert "copy.jpg (test) is the same image as" in problem
    assert "ant-train-0.jpg (train)" in problem
    assert len(check(tmp_path / "out", processes=1).problems) == 1
