"""What a conversion reads: label files of flat folders, and the division into shards."""

import pytest

from image_folders import convert_here, flatten, write_images
from paceline.errors import UserError
from paceline.formats.conversion_plan import IMAGENET_SHARDS, _divide, is_imagenet, read_label_file
from record_folders import assert_one_line

FILES = {f"ILSVRC2012_val_{number:08d}.JPEG": f"n{number % 3:08d}" for number in range(1, 7)}


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(list(FILES.values()), id="one class per line"),
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
    ("lines", "words"),
    [
        (["ant"] * 5, "5 lines"),
        (["7"] * 6, "numbers are not taken"),
        (["x y"] * 6, "no class for"),
        (None, "--labels-file"),
    ],
)
def test_a_label_file_that_does_not_fit_is_one_line(tmp_path, lines, words):
    folder = write_images(tmp_path / "data")
    flatten(folder / "val")
    (tmp_path / "labels").write_text("\n".join(lines or []))
    labels_file = str(tmp_path / "labels") if lines else ""
    with pytest.raises(UserError) as error:
        convert_here(folder, tmp_path / "out", labels_file=labels_file)
    assert_one_line(error.value, words)


def test_imagenet_has_its_usual_shards_and_labels_from_1():
    assert is_imagenet([f"n{number:08d}" for number in range(1000)])
    assert not is_imagenet([f"n{number:08d}" for number in range(10)])
    assert IMAGENET_SHARDS == {"train": 1024, "validation": 128}
    first = _divide("train", range(1_281_167), 1024, bytes)[0]
    assert (first.name, first.examples) == ("train-00000-of-01024", range(1251))


def test_more_shards_than_images_are_refused():
    with pytest.raises(UserError, match="give fewer"):
        _divide("train", range(18), 19, bytes)
