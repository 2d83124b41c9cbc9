"""`paceline predict` and the predictor: images of any kind, prepared as in training.

What is not an image is named.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import paceline as library
from helpers import TIMEOUT_S, paceline
from in_process import paceline_here
from made_runs import SMALL, encode, make_grey_run, make_pictures_run, make_run
from paceline.data.shapes import draw_shapes
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Model
from paceline.requests import EvaluateRequest
from paceline.results.evaluate import evaluate_run
from paceline.results.predict import Predictor, find_files, load_predictor

TEST_IMAGES, _ = draw_shapes(1, 131)
PHOTO = np.kron(
    np.arange(12, dtype=np.uint8).reshape(3, 4, 1) * 20 + [[[0, 5, 10]]], np.ones((50, 50, 1))
).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def predictor(folder: Path) -> Predictor:
    """Of 32 x 32 colour images."""
    run, _ = make_run(folder / "shapes", replace(SMALL, data=Data(train_size=64, test_size=5)))
    return load_predictor(run.path)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test images of the smoke recipe as files, in their order, and bad files."""
    folder = tmp_path_factory.mktemp("images")
    for number, pixels in enumerate(TEST_IMAGES):
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    bad = folder / "bad"
    bad.mkdir()
    (bad / "empty.jpg").touch()
    (bad / "text.png").write_text("hello")
    (bad / "cut.png").write_bytes((folder / "000.png").read_bytes()[:900])
    Image.new("1", (10_000, 10_000)).save(bad / "large.png")
    return folder


@pytest.mark.slow
def test_a_test_image_as_a_file_gets_exactly_the_probabilities_of_eval(
    uninterrupted: Path, images: Path
):
    evaluation = library.evaluate(uninterrupted)
    found = library.predict(uninterrupted, str(images / "*.png"), top=10)
    assert [Path(each.file).name for each in found] == [
        f"{number:03d}.png" for number in range(131)
    ]
    shares = [[dict(each.top)[name] for name in evaluation.classes] for each in found]
    np.testing.assert_array_equal(np.array(shares, np.float32), evaluation.probabilities)
    floats = TEST_IMAGES[:2].astype(np.float32) / 255
    given = [TEST_IMAGES[2], Image.fromarray(TEST_IMAGES[3]), str(images / "004.png")]
    also = library.predict(uninterrupted, floats, top=10)
    also += library.predict(uninterrupted, given, top=10)
    assert [each.top for each in also] == [each.top for each in found[:5]]
    assert [each.file for each in also] == ["0", "1", "0", "1", str(images / "004.png")]


@pytest.mark.parametrize("scaling", ["mean_std", "standardize"])
def test_grey_images_that_are_not_square_get_exactly_the_probabilities_of_eval(
    tmp_path: Path, scaling: str
):
    run, _, test = make_grey_run(tmp_path, scaling=scaling)
    predictor = load_predictor(run.path)
    assert predictor.classes == ("a", "b", "[red]c")
    np.testing.assert_array_equal(
        predictor.predict([encode(each) for each in test]), evaluate_run(run).probabilities
    )


@pytest.mark.slow
def test_images_of_any_size_get_exactly_the_probabilities_of_eval(tmp_path: Path):
    run, _, files = make_pictures_run(tmp_path)
    shutil.move(tmp_path / "pictures", tmp_path / "elsewhere")  # it needs no data
    predictor = load_predictor(run.path)
    found = predictor.predict(
        [Path(str(file).replace("/pictures/", "/elsewhere/")).read_bytes() for file in files]
    )
    np.testing.assert_array_equal(
        found,
        evaluate_run(run, EvaluateRequest(data_dir=str(tmp_path / "elsewhere"))).probabilities,
    )


def test_probabilities_do_not_depend_on_the_other_images_of_a_call(predictor: Predictor):
    encoded = [encode(pixels) for pixels in TEST_IMAGES[:4]] * 80  # more than a batch
    together = predictor.predict(encoded)
    assert together.shape == (320, 10)
    assert together.dtype == np.float32
    np.testing.assert_array_equal(together[316:], together[:4])
    np.testing.assert_array_equal(predictor.predict(encoded[1:2]), together[1:2])
    np.testing.assert_array_equal(
        predictor.predict([encode(PHOTO), *encoded[:4]])[1:], together[:4]
    )  # of another size
    assert predictor.predict([]).shape == (0, 10)


def as_16_bit(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels[..., 0].astype(np.uint16) * 256 + 7)


GREY = np.repeat(TEST_IMAGES[0][..., :1], 3, axis=-1)
COLOUR = TEST_IMAGES[0]
LOSSLESS: dict[str, tuple[np.ndarray, Callable[[], bytes]]] = {
    "BMP": (COLOUR, lambda: encode(COLOUR, "BMP")),
    "lossless WebP": (COLOUR, lambda: encode(COLOUR, "WEBP", lossless=True)),
    "PNG with transparency": (COLOUR, lambda: encode(Image.fromarray(COLOUR).convert("RGBA"))),
    "grey PNG": (GREY, lambda: encode(GREY[..., 0])),
    "grey BMP": (GREY, lambda: encode(GREY[..., 0], "BMP")),
    "GIF": (GREY, lambda: encode(GREY[..., 0], "GIF")),
    "palette PNG": (GREY, lambda: encode(Image.fromarray(GREY[..., 0]).convert("P"))),
    "16 bit PNG": (GREY, lambda: encode(as_16_bit(GREY))),
}


@pytest.mark.parametrize("kind", LOSSLESS)
def test_every_lossless_format_gets_the_probabilities_of_its_png(predictor: Predictor, kind: str):
    pixels, make = LOSSLESS[kind]
    np.testing.assert_array_equal(predictor.predict([make()]), predictor.predict([encode(pixels)]))


def test_a_model_of_one_size_of_another_is_resized_as_in_evaluation(tmp_path: Path):
    data = Data(train_size=64, test_size=7, image_size=48)
    run, _ = make_run(
        tmp_path / "run", replace(SMALL, data=data, model=Model(depth=8, width=4, num_classes=12))
    )
    predictor = load_predictor(run.path)
    assert predictor.classes[-3:] == (*predictor.classes[9:10], "10", "11")
    found = predictor.predict([encode(pixels) for pixels in TEST_IMAGES[:7]])
    np.testing.assert_array_equal(found, evaluate_run(run).probabilities)


def test_what_is_not_an_image_is_named_by_its_index_and_the_others_are_predicted(
    predictor: Predictor, images: Path
):
    good = (images / "000.png").read_bytes()
    names = ("empty.jpg", "text.png", "cut.png", "large.png")
    mixed = [
        good,
        *((images / "bad" / name).read_bytes() for name in names),
        encode(PHOTO, "JPEG")[:400],
        good,
    ]
    found, faults = predictor.try_predict(mixed)
    assert sorted(faults) == [1, 2, 3, 4, 5]
    assert (faults[1], faults[2]) == ("is empty", "is not an image")
    assert "cannot be decoded" in faults[3]
    assert faults[4] == "has 100 megapixels; 90 is the most: make it smaller"
    assert "cannot be decoded" in faults[5]
    assert np.isnan(found[1:6]).all()
    np.testing.assert_array_equal(found[[0, 6]], predictor.predict([good, good]))
    with pytest.raises(UserError, match="image 2 of 7 is empty"):
        predictor.predict(mixed)


@pytest.mark.slow
def test_the_command_names_what_it_skips_and_its_exit_code_says_so(
    uninterrupted: Path, images: Path, tmp_path: Path
):
    flags = ("--top", "2", "--json")
    ended = paceline("predict", str(uninterrupted), str(images), *flags, cwd=tmp_path)
    assert ended.code == 1, ended
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert len(rows) == 131 + 4
    tops = [[each["probability"] for each in row["top"]] for row in rows[:131]]
    assert all(first >= second for first, second in tops)
    skipped = [
        f"paceline: skipped {row['file']}: it {row['error']}" for row in rows if row["error"]
    ]
    assert ended.err.splitlines() == skipped
    assert [Path(row["file"]).name for row in rows[131:]] == [
        "cut.png",
        "empty.jpg",
        "large.png",
        "text.png",
    ]


def test_the_command_prints_json_or_plain_lines(uninterrupted: Path, images: Path, tmp_path: Path):
    files = [str(images / f"00{number}.png") for number in range(2)]
    ended = paceline_here("predict", str(uninterrupted), *files, "--json", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    one, two = (json.loads(line) for line in ended.out.splitlines())
    assert (one["file"], two["file"], one["error"]) == (*files, "")
    assert len(one["top"]) == 5
    plain = paceline_here("predict", str(uninterrupted), files[0], "--top", "1", cwd=tmp_path)
    assert plain.out == f"{files[0]}  {one['top'][0]['class']} {one['top'][0]['probability']:.4f}\n"


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_it_silently(
    uninterrupted: Path, images: Path, tmp_path: Path
):
    many = " ".join(
        [f"'{images}/*.png'", *(f"'{images}/{'./' * more}*.png'" for more in range(1, 6))]
    )  # several batches
    command = f"'{sys.executable}' -m paceline predict '{uninterrupted}' {many}"
    line = f"{command} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    first, code = done.stdout.splitlines()
    assert first.startswith(str(images / "000.png"))
    assert (code, done.stderr) == ("1", "")


def test_files_folders_and_globs_are_found_once_each_in_order(tmp_path: Path):
    for name in ("b.jpg", "a.PNG", "notes.txt", ".hidden.png", "deep/er/c.webp", ".git/d.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    here = str(tmp_path)
    assert find_files([here]) == [f"{here}/{name}" for name in ("a.PNG", "b.jpg", "deep/er/c.webp")]
    assert find_files([f"{here}/b.jpg", f"{here}/*.*", f"{here}/notes.txt"]) == [
        f"{here}/{name}" for name in ("b.jpg", "a.PNG", "notes.txt")
    ]
    assert find_files([f"{here}/**/*.webp"]) == [f"{here}/deep/er/c.webp"]
    for wrong in (f"{here}/no.jpg", f"{here}/*.gif"):
        with pytest.raises(UserError, match="there is no"):
            find_files([wrong])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is no image in"):
        find_files([f"{here}/empty"])


def test_bad_flags_are_one_line(uninterrupted: Path, tmp_path: Path):
    for arguments, part in (
        ([], "IMAGE is missing"),
        (["no.jpg"], "there is no no.jpg"),
        ([".", "--top", "0"], "top is 0"),
    ):
        ended = paceline_here("predict", str(uninterrupted), *arguments, cwd=tmp_path)
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended
        assert part in ended.err
