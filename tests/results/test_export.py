"""`paceline export`: without Paceline, each format gives the predictions of eval."""

import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from safetensors import safe_open

from helpers import SUPPORT, TIMEOUT_S, Ended, paceline
from in_process import paceline_here
from made_runs import SMALL, encode, export, make_grey_run, make_pictures_run, make_run
from paceline.data.images import scale
from paceline.data.shapes import draw_shapes
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Scaling
from paceline.job import Job, Run
from paceline.requests import ExportRequest
from paceline.results import tflite
from paceline.results.evaluate import evaluate_run
from paceline.results.export import answer, check_target
from paceline.results.export_formats import scaling_layers
from paceline.results.onnx_predict import predict_onnx
from paceline.results.predict import load_predictor
from paceline.run_folder.folder import RunFolder

TOLERANCE = 1e-4


def use(to: str, out: Path, folder: Path, **inputs: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return what an export predicts for images, in a process without Paceline."""
    np.savez(folder / "inputs.npz", **inputs)
    program = str(SUPPORT / "exported.py")
    command = [sys.executable, program, to, str(folder / "inputs.npz"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    with np.load(f"{out}.npz") as found:
        return found["outputs"], list(found["classes"])


@pytest.mark.slow
@pytest.mark.parametrize("to", ["keras", "savedmodel", "onnx", "tflite"])
def test_an_export_used_without_paceline_agrees_with_eval_on_every_test_image(
    uninterrupted: Path, tmp_path: Path, to: str
):
    run, out = RunFolder(uninterrupted), tmp_path / f"model.{to}"
    notes = export(run, out, to)
    assert len(notes) == (to in ("keras", "tflite")), notes
    assert list(tmp_path.iterdir()) == [out]
    images, _ = draw_shapes(1, 131)
    encoded = np.array([encode(each) for each in images], object)
    found, classes = use(to, out, tmp_path, pixels=images.astype(np.float32), encoded=encoded)
    evaluation = evaluate_run(run)
    assert classes == list(evaluation.classes)
    np.testing.assert_array_equal(found.argmax(axis=1), evaluation.probabilities.argmax(axis=1))
    np.testing.assert_allclose(found, evaluation.probabilities, atol=TOLERANCE)


@pytest.mark.slow
def test_int8_predicts_the_same_classes_or_is_refused(
    uninterrupted: Path, tmp_path: Path, monkeypatch
):
    run, out, float32 = RunFolder(uninterrupted), tmp_path / "model.tflite", tmp_path / "32.tflite"
    what = export(run, out, "tflite", "int8")[-1]
    export(run, float32, "tflite")
    agreeing, count = map(int, re.findall(r"for (\d+) of (\d+) training", what)[0])
    assert 0.9 * count <= agreeing <= count == 200
    images, _ = draw_shapes(1, 131)
    found, _ = use("tflite", out, tmp_path, pixels=images.astype(np.float32))
    expected = evaluate_run(run).probabilities
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.9
    assert 1e-4 < np.abs(found - expected).max() < 0.5
    assert out.stat().st_size < 0.7 * float32.stat().st_size
    convert = tflite._convert
    monkeypatch.setattr(tflite, "_convert", lambda model, sample: convert(model, 0 * sample))
    with pytest.raises(UserError, match="so it was not written"):
        export(run, tmp_path / "black.tflite", "tflite", "int8")
    assert not (tmp_path / "black.tflite").exists()


def test_safetensors_hold_the_weights_that_are_evaluated_with_their_names_and_classes(
    tmp_path: Path,
):
    run, core, _ = make_grey_run(tmp_path)
    export(run, tmp_path / "weights.safetensors", "safetensors")
    with safe_open(tmp_path / "weights.safetensors", framework="numpy") as file:
        assert json.loads(file.metadata()["classes"]) == ["a", "b", "[red]c"]
        assert {name: file.get_tensor(name).shape for name in file.keys()} == dict(  # noqa: SIM118
            core.template.params + core.template.stats
        )
        name, _ = core.template.params[0]
        with safe_open(
            run.checkpoints / "step-00000001.safetensors", framework="numpy"
        ) as checkpoint:
            np.testing.assert_array_equal(
                file.get_tensor(name), checkpoint.get_tensor(f"params/{name}")
            )
    assert (tmp_path / "weights.safetensors").stat().st_mode & 0o777 == 0o644


def described(out: Path) -> dict[str, object]:
    """Return what an export says of itself, by what its format has for that."""
    if out.is_dir():
        return json.loads((out / "assets.extra" / "paceline.json").read_text())
    if out.suffix in (".keras", ".tflite"):
        return json.loads(zipfile.ZipFile(out).read("paceline.json"))
    if out.suffix == ".onnx":
        texts = {each.key: each.value for each in onnx.load(out).metadata_props}
    else:
        with safe_open(out, framework="numpy") as file:
            texts = {name: text for name, text in file.metadata().items() if name != "format"}
    plain = ("input", "output", "inside", "run", "state_sha256")
    return {name: text if name in plain else json.loads(text) for name, text in texts.items()}


@pytest.mark.parametrize("name", ["m.keras", "model", "m.onnx", "m.tflite", "m.safetensors"])
def test_an_export_contains_its_description(tmp_path: Path, name: str):
    run, _, _ = make_grey_run(tmp_path)
    out = tmp_path / name
    to = out.suffix[1:] or "savedmodel"
    export(run, out, to)
    facts = described(out)
    assert facts["classes"] == ["a", "b", "[red]c"]
    assert facts["preprocessing"]["grey"] == [0.2989, 0.587, 0.114]


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch):
    run, _, _ = make_grey_run(tmp_path)
    out = tmp_path / "exports" / "weights"

    def fail(new: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UserError, match="No space left"):
        export(run, out, "safetensors")
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("scaling", ["standardize", "unit", "mean", "mean_std", "bgr_mean"])
@pytest.mark.parametrize("channels", [1, 3])
def test_scaling_in_kerass_own_layers_is_that_of_training(
    scaling: str, channels: int, tmp_path: Path
):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 6, channels)).astype(np.float32)
    pixels[0] = 9  # of one colour: no deviation to divide by
    settings, inputs = Scaling(scaling), keras.Input((7, 6, channels))
    model = keras.Model(inputs, scaling_layers(settings, (7, 6, channels), inputs))
    model.save(tmp_path / "scaling.keras")
    found = keras.models.load_model(tmp_path / "scaling.keras")(pixels)
    np.testing.assert_allclose(found, scale(settings, tf.constant(pixels)), atol=1e-4)


def test_a_run_of_lower_precision_is_exported_in_float32_with_a_note(tmp_path: Path):
    run, _ = make_run(
        tmp_path / "run",
        replace(SMALL, data=Data(train_size=32, test_size=9), precision="bfloat16"),
    )
    note, _ = export(run, tmp_path / "model.keras", "keras")
    assert note == "the export computes in float32, the training did in bfloat16"
    assert {
        layer.compute_dtype for layer in keras.models.load_model(tmp_path / "model.keras").layers
    } == {"float32"}


def test_a_target_that_exists_is_replaced_only_when_forced(tmp_path: Path):
    model, folder = tmp_path / "model.onnx", tmp_path / "folder"
    model.write_text("old")
    folder.mkdir()
    (folder / "precious.txt").touch()
    with pytest.raises(UserError, match="exists; pass --force"):
        check_target(str(model), "onnx", force=False)
    check_target(str(model), "onnx", force=True)
    for path, to in ((folder, "savedmodel"), (folder, "onnx"), (model, "savedmodel")):
        with pytest.raises(UserError, match="is not an export to"):
            check_target(str(path), to, force=True)
    with pytest.raises(UserError, match=r"use .*model\.keras"):
        check_target(str(model), "keras", force=True)


def test_forcing_replaces_a_savedmodel_whole_and_a_failure_leaves_the_old_one(tmp_path: Path):
    run, _, _ = make_grey_run(tmp_path)
    out = tmp_path / "a new folder" / "model"  # export makes its parent folder
    export(run, out, "savedmodel")
    (out / "left-over").touch()
    with pytest.raises(UserError, match="no checkpoint of step 9"):
        _export_again(run, out, checkpoint="9")
    assert (out / "left-over").exists()
    _export_again(run, out, checkpoint="best")
    assert not (out / "left-over").exists()
    assert (out / "saved_model.pb").exists()


def _export_again(run: RunFolder, out: Path, checkpoint: str) -> None:
    request = ExportRequest(str(out), "savedmodel", checkpoint=checkpoint)
    answer(Job(run.experiment(), run=Run(run_dir=str(run.path))), request, lambda message: None)


def refused(ended: Ended, part: str) -> bool:
    return ended.code == 2 and ended.err.count("\n") == 1 and part in ended.err


@pytest.mark.slow
def test_the_command_says_what_it_wrote_and_never_overwrites(uninterrupted: Path, tmp_path: Path):
    command = ("export", str(uninterrupted), "model.onnx")
    ended = paceline(*command, cwd=tmp_path)
    assert ended.code == 0, ended
    assert ended.out.startswith(
        "wrote model.onnx (step 24): RGB images of any size, uint8 [n, height, width, 3] -> "
    )
    assert ended.err == ""
    written = (tmp_path / "model.onnx").read_bytes()
    assert refused(paceline_here(*command, cwd=tmp_path), "model.onnx exists")
    assert (tmp_path / "model.onnx").read_bytes() == written
    assert refused(
        paceline_here("export", str(uninterrupted), "m", "--to", "torch", cwd=tmp_path),
        "invalid choice 'torch' for argument '--to'",
    )
    int8 = ("export", str(uninterrupted), "m.onnx", "--quantize", "int8")
    assert refused(paceline_here(*int8, cwd=tmp_path), "only tflite can be quantized")
    unknown = paceline_here("export", str(uninterrupted), "m.pt", cwd=tmp_path)
    assert refused(unknown, "to is 'pt' for m.pt; it must be one of keras")


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_grey_run, make_pictures_run])
def test_onnx_takes_images_of_any_size_and_agrees_with_predict(tmp_path: Path, make):
    run, _, _ = make(tmp_path)
    export(run, tmp_path / "model.onnx", "onnx")
    random, files = np.random.default_rng(0), []
    for number, (height, width) in enumerate([(12, 10), (64, 47), (31, 90), (7, 5)]):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(encode(random.integers(0, 256, (height, width, 3), np.uint8)))
    found = list(predict_onnx(str(tmp_path / "model.onnx"), [*map(str, files), "gone.jpg"], 9))
    assert found.pop().error == "is empty"
    predictor = load_predictor(run.path, "last")
    expected = predictor.predict([file.read_bytes() for file in files])
    for prediction, shares in zip(found, expected, strict=True):
        given = [dict(prediction.top)[name] for name in predictor.classes]
        np.testing.assert_allclose(given, shares, atol=1e-3)
