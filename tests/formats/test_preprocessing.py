"""One preprocessing for every format and everywhere: docs/using-a-run.md is enough to repeat it,
and exports say what to feed them."""

import contextlib
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from made_runs import SMALL, encode, export, make_grey_run, make_pictures_run, make_run
from paceline.experiment.experiment import Augmentation, Data, Scaling
from paceline.formats.encoded.decode import read_headers
from paceline.formats.encoded.prepare import Box, decode_boxes
from paceline.requests import EvaluateRequest
from paceline.results.evaluate import evaluate_run
from paceline.results.export import describe_preprocessing
from paceline.results.predict import Predictor, load_predictor
from paceline.run_folder.folder import RunFolder

DOCS = Path(__file__).parents[2] / "docs"
LOSSLESS = {"png": {}, "bmp": {}, "webp": {"lossless": True}}
"""With JPEG, four formats."""


def code_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)


def prepare_program() -> str:
    """Return the program `prepare.py` of the documentation."""
    (text,) = (text for text in code_blocks("using-a-run.md") if "def prepare(" in text)
    return text


def documented() -> Any:
    """Return the functions `prepare` and `scale` as the documentation gives them."""
    names: dict[str, Any] = {}
    exec(prepare_program(), names)
    return SimpleNamespace(**names)


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Return shapes under fine noise: what another filter or another DCT would show."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (9, 7, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.NEAREST), np.float64)
    noise = random.normal(0, 40, (height, width, 1))
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def in_four_formats(jpeg: bytes) -> dict[str, bytes]:
    """Return files with the pixels of a JPEG, which Pillow decodes here."""
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    others = {kind: encode(pixels, kind.upper(), **more) for kind, more in LOSSLESS.items()}
    return {"jpg": jpeg} | others


SIZES = ((61, 47), (40, 90), (150, 133), (400, 310))
JPEGS = [
    encode(photo(seed, *size), "JPEG", quality=80, subsampling=seed % 3)
    for seed, size in enumerate(SIZES)
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_pictures_run(tmp_path_factory.mktemp("pictures"))[0]


@pytest.fixture(scope="module")
def predictor(pictures: RunFolder) -> Predictor:
    return load_predictor(pictures.path)


def test_a_jpeg_and_other_files_with_the_same_pixels_get_the_same_predictions(predictor: Predictor):
    files = [in_four_formats(jpeg) for jpeg in JPEGS]
    found = {kind: predictor.predict([each[kind] for each in files]) for kind in files[0]}
    for kind in LOSSLESS:
        np.testing.assert_array_equal(found["jpg"], found[kind], err_msg=kind)


def runs_to_repeat(folder: Path) -> dict[str, RunFolder]:
    shapes = replace(SMALL, data=Data(train_size=32, test_size=4))
    large = Data(train_size=32, test_size=4, image_size=48)
    reflected = Augmentation(crop_size=37, padding_mode="reflect")
    experiments = {
        "shapes": replace(shapes, scaling=Scaling("standardize")),
        "enlarged": replace(shapes, data=large, scaling=Scaling("unit")),
        "smaller window": replace(
            shapes, augment=Augmentation(crop_size=27), scaling=Scaling("mean")
        ),
        "larger window": replace(shapes, augment=reflected),
    }
    runs = {name: make_run(folder / name, each)[0] for name, each in experiments.items()}
    return runs | {"pictures": make_pictures_run(folder)[0], "grey": make_grey_run(folder)[0]}


@pytest.mark.slow
def test_the_preprocessing_is_repeated_by_pillow_and_numpy_alone(tmp_path: Path):
    """To a thousandth, also of images that EXIF turns, by the code in docs/using-a-run.md."""
    theirs = documented()
    files = [data for jpeg in JPEGS for data in in_four_formats(jpeg).values()]
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        files.append(encode(photo(orientation, 70, 51), "JPEG", exif=exif))
    files += [encode(photo(1, 70, 51).quantize(20), kind) for kind in ("GIF", "BMP")]
    see_through = photo(2, 70, 51)
    see_through.putalpha(Image.linear_gradient("L").resize((70, 51)))
    files += [encode(see_through, "GIF"), encode(see_through, "WEBP", lossless=True, exact=True)]
    for name, run in runs_to_repeat(tmp_path).items():
        predictor, experiment = load_predictor(run.path), run.experiment()
        shape = run.data_facts()["image_shape"]
        steps = json.loads(json.dumps(describe_preprocessing(experiment, shape and tuple(shape))))
        readable = [each for each in files if not each.startswith(b"II*")]  # TIFF
        ours = predictor._prepare(readable).numpy()
        for each, found in zip(readable, ours, strict=True):
            wanted = theirs.scale(theirs.prepare(io.BytesIO(each), steps), steps)
            assert found.shape == wanted.shape, name
            # where the data set has whole numbers, one may be rounded to the other side
            apart = np.abs(found - wanted)
            assert np.quantile(apart, 0.99 if steps["round"] else 1) < 1e-3, (name, each[:4])
            assert apart.max() < 1.001, (name, each[:4])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gif", "bmp", "webp", "png"])
def test_eval_and_predict_agree_on_every_format_that_can_be_trained_on(
    pictures: RunFolder, predictor: Predictor, tmp_path: Path, kind: str
):
    files = []
    for part in ("train", "val"):
        for label in ("left", "right"):
            (tmp_path / part / label).mkdir(parents=True)
            for number in range(9 if part == "train" else 4):
                path = tmp_path / part / label / f"{number}.{kind}"
                exif = Image.Exif()
                exif[0x0112] = 6
                more = {"exif": exif} if kind in ("webp", "png") else {}
                photo(number, 50 + number, 60).save(path, kind, **more)
                files += [path] * (part == "val")
    evaluation = evaluate_run(pictures, EvaluateRequest(data_dir=str(tmp_path)))
    found = predictor.predict([path.read_bytes() for path in sorted(files)])
    np.testing.assert_array_equal(found, evaluation.probabilities)


def test_the_faster_decoding_of_training_shifts_no_colors():
    """The same box by both ways: they differ by noise around 0. The rest of the way is a factor of
    1.8, near the largest that training has."""
    strings = tf.constant(JPEGS[3:])
    headers = read_headers(strings)
    heights, widths = headers.height, headers.width
    box = Box(heights // 10, widths // 10, heights * 7 // 10, widths * 7 // 10)
    for size, way in ((120, 1), (60, 2), (30, 3)):
        exact = decode_boxes(strings, headers, box, (size, size))
        fast = decode_boxes(strings, headers, box, (size, size), way=tf.fill([1], way))
        apart = (fast - exact).numpy()
        assert np.abs(apart.mean(axis=(1, 2))).max() < 1.0, (size, way)
        assert apart.std() < 25, (size, way)


def printed(text: str) -> list[str]:
    """Run a snippet; return the words that it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(text, {})
    return out.getvalue().split()


@pytest.mark.slow
def test_the_snippets_of_the_documentation_give_the_answers_of_predict(
    pictures: RunFolder, predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for out in ("model.keras", "model", "model.onnx", "model.tflite"):
        export(pictures, tmp_path / out, Path(out).suffix[1:] or "savedmodel")
    (tmp_path / "prepare.py").write_text(prepare_program())
    (tmp_path / "photo.jpg").write_bytes(JPEGS[2])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "prepare", raising=False)
    snippets = [text for text in code_blocks("using-a-run.md") if "photo.jpg" in text]
    snippets = [text for text in snippets if "paceline" not in text.replace("paceline.json", "")]
    assert len(snippets) == 4
    (shares,) = predictor.predict([JPEGS[2]])
    for text in snippets:
        assert len(text.split("\n\n", 1)[1].splitlines()) <= 10
        name, share = printed(text)
        assert name == predictor.classes[shares.argmax()], text
        assert abs(float(share) - shares.max()) < 1e-4, text
