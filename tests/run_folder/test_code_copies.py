"""A run keeps the code that it was trained with, and finds its data."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import fine, result_of
from in_process import paceline_here
from paceline.experiment.experiment import Data
from paceline.experiment.recipes.table import get_recipe
from paceline.experiment.user_code import load_function
from paceline.run_folder.code_copies import copied, keep_copy
from paceline.run_folder.folder import RunFolder
from report_runs import make_folder

OWN = """
import keras
from near import CHANNELS


def model(image_shape, num_classes):
    from far.deeper import head

    inputs = keras.Input(image_shape)
    x = keras.layers.Conv2D(CHANNELS, 3, strides=4)(inputs)
    return keras.Model(inputs, head(keras.layers.GlobalAveragePooling2D()(x), num_classes))


def data(settings):
    from paceline.experiment.experiment import Data
    from paceline.data.build_source import build_source

    return build_source(Data(train_size=32, test_size=8))


def note(step, metrics):
    print("noted", step)
"""


def write_code(folder: Path) -> None:
    (folder / "far").mkdir(parents=True)
    (folder / "own.py").write_text(OWN)
    (folder / "near.py").write_text("CHANNELS = 4\n")
    (folder / "far" / "__init__.py").write_text("")
    (folder / "far" / "deeper.py").write_text(
        "import keras\nfrom . import sizes\n\n\ndef head(x, n):\n"
        "    return keras.layers.Dense(n)(x)\n"
    )
    (folder / "far" / "sizes.py").write_text("SIZES = ()\n")
    (folder / "unused.py").write_text("raise SystemError\n")


FLAGS = ("--model.build", "own.py:model", "--data.build", "own.py:data", "--actions", "own.py:note")


TINY = ("--replicas", "1", "--global-batch-size", "8", "--steps", "2", "--epochs", "1")


@pytest.mark.slow
def test_a_run_keeps_its_code_and_is_used_and_resumed_from_any_folder(tmp_path: Path):
    begun, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    write_code(begun)
    elsewhere.mkdir()
    run = begun / "run"
    train = ("train", "smoke", "--run-dir", str(run), *FLAGS, *TINY)
    fine(paceline_here(*train, "--stop-at", "1", cwd=begun))
    names = {path.relative_to(run / "code").as_posix() for path in (run / "code").rglob("*.py")}
    needed = ("own.py", "near.py", "far/__init__.py", "far/deeper.py", "far/sizes.py")
    assert names == {
        f"{kind}/{n}" for kind in ("model.build", "data.build", "actions") for n in needed
    }
    shutil.copytree(run, tmp_path / "other")
    fine(paceline_here(*train, cwd=begun))
    straight = result_of(run)
    for path in begun.iterdir():
        if path.name != "run":
            shutil.move(path, tmp_path / f"gone-{path.name}")

    again = tuple(str(tmp_path / "other") if word == str(run) else word for word in train)
    refused = paceline_here(*again, cwd=elsewhere)
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused
    assert "pass --trust-code" in refused.err
    fine(paceline_here(*again, "--trust-code", cwd=elsewhere))
    resumed = result_of(tmp_path / "other")
    assert resumed["state_sha256"] == straight["state_sha256"]

    refused = paceline_here("eval", str(run), cwd=elsewhere)
    assert (refused.code, "--trust-code" in refused.err) == (2, True)
    fine(paceline_here("eval", str(run), "--trust-code", cwd=elsewhere))
    export = ("export", str(run), "weights.safetensors", "--to", "safetensors", "--trust-code")
    fine(paceline_here(*export, cwd=elsewhere))


def test_the_copy_of_a_run_wins_over_a_module_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in (("one", 1), ("two", 2)):
        package = tmp_path / name / "first_hour_package"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "part.py").write_text(f"def build():\n    return {value}\n")
    spec = "first_hour_package.part:build"
    for name, value in (("one", 1), ("two", 2)):
        monkeypatch.chdir(tmp_path / name)
        keep_copy(tmp_path / f"run {name}", "model.build", spec)
        place = copied(tmp_path / f"run {name}", "model.build", spec)
        assert load_function(place)() == value
    assert copied(tmp_path / "run one", "data.build", spec) == ""


def test_data_is_found_from_any_folder_and_where_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "begun" / "photos").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "begun")
    experiment = replace(get_recipe("smoke"), data=Data(source="pictures", dir="photos"))
    run = make_folder(Path("runs"), "mine", experiment)
    run = RunFolder(tmp_path / "begun/runs/mine")
    assert run.experiment().data.dir == "photos", "the experiment is as it was"
    monkeypatch.chdir(tmp_path)
    assert run.data_dir() == str(tmp_path / "begun" / "photos")
    listed = paceline_here("runs", "begun/runs", cwd=tmp_path)
    assert f"--data.dir {tmp_path}/begun/photos " in listed.out
    assert "--run-dir begun/runs/mine" in listed.out
    shutil.move(tmp_path / "begun/photos", tmp_path / "photos")
    assert run.data_dir() == "photos", "data that moved along with the working directory"
    shutil.move(tmp_path / "photos", tmp_path / "moved")
    refused = paceline_here("eval", "begun/runs/mine", cwd=tmp_path)
    assert (refused.code, refused.err.count("\n")) == (2, 2), refused  # and that it is not finished
    assert f"was in {tmp_path}/begun/photos, which is not there; pass --data.dir" in refused.err
