"""Issue 19, points 3 to 5: what went wrong in a newcomer's first hour. Points 1 and 2 are in
test_preprocessing."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from test_tools import make_folder

from helpers import Ended, paceline, result_of
from in_process import paceline_here
from paceline.data.build import build_source
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Experiment, Model, Records
from paceline.experiment.recipes.table import get_recipe
from paceline.experiment.user_code import load_function
from paceline.extras.report.charts import WIDTH, Chart, Drawing, Line
from paceline.extras.report.formats import whole_percent
from paceline.extras.report.run_data import read_run
from paceline.results.in_worker import _note_unfinished
from paceline.runs.code_copies import copied, keep_copies
from paceline.runs.folder import RunFolder
from record_folders import write_imagenet
from report_runs import make_run, report

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
    from paceline.data.build import build_source

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


def fine(ended: Ended) -> Ended:
    assert ended.code == 0, ended
    return ended


def test_point_3_a_run_keeps_its_code_and_is_used_and_resumed_from_any_folder(tmp_path: Path):
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
    assert "give --trust-code" in refused.err
    fine(paceline_here(*again, "--trust-code", cwd=elsewhere))
    resumed = result_of(tmp_path / "other")
    assert resumed["state_sha256"] == straight["state_sha256"]

    refused = paceline_here("eval", str(run), cwd=elsewhere)
    assert (refused.code, "--trust-code" in refused.err) == (2, True)
    fine(paceline_here("eval", str(run), "--trust-code", cwd=elsewhere))
    export = ("export", str(run), "weights.safetensors", "--to", "safetensors", "--trust-code")
    fine(paceline_here(*export, cwd=elsewhere))


def test_point_3_the_copy_of_a_run_wins_over_a_module_of_the_same_name(
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
        keep_copies(tmp_path / f"run {name}", [("model.build", spec)])
        place = copied(tmp_path / f"run {name}", "model.build", spec)
        assert load_function(place)() == value
    assert copied(tmp_path / "run one", "data.build", spec) == ""


def test_point_3_data_is_found_from_any_folder_and_where_it_is_now(
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
    assert f"was in {tmp_path}/begun/photos, which is not there; give --data.dir" in refused.err


def test_point_4_labels_from_1_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    folder = write_imagenet(tmp_path / "records", labels_file=False)
    data = Data(source="tfrecord", dir=str(folder), image_size=8)
    with pytest.raises(UserError, match=r"labels are 1 to 5, and no record has the label 0; give"):
        build_source(data)
    assert len(build_source(data, Records(first_label=1)).classes) == 5
    assert len(build_source(data, Records(first_label=0)).classes) == 6
    (folder / "labels.txt").write_text("a\nb\nc\nd\ne\n")
    checked = paceline_here("data", "check", str(folder), cwd=tmp_path)
    assert "if labels count from 1, give --records.first-label 1" in checked.out + checked.err


def test_point_4_a_wrong_key_names_the_flag_and_the_file_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
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


@pytest.mark.parametrize("value", [0.0, 0.02, 0.4, 0.97, 1.0])
@pytest.mark.parametrize("more", [0.0, 1e-12, 0.03])
def test_point_5_an_accuracy_axis_ends_at_100_percent(value: float, more: float):
    ys = sorted({value, min(1.0, value + more)})
    points = [(float(x), y) for x, y in enumerate(ys)]
    drawing = Drawing(Chart("Accuracy", [Line("", points, 0)], "epoch", whole_percent, most=1.0))
    texts = [float(text.removesuffix(" %")) for _, text in drawing.levels]
    assert len(texts) > 1
    assert 0 <= min(texts) <= 100 * ys[0] + 1e-6
    assert 100 * ys[-1] - 1e-6 <= max(texts) <= 100


def test_point_5_axis_labels_have_room_for_their_text():
    points = [(0.0, 1234.5), (1_000_000.0, 123456.7)]
    drawing = Drawing(Chart("Speed", [Line("", points, 0)], "minutes", lambda v: f"{v:,.2f}"))
    widest = max(len(text) for _, text in drawing.levels)
    assert drawing.left - 6 >= 6.5 * widest
    x, text = drawing.columns[-1]
    assert x + 6.5 * len(text) / 2 <= WIDTH


def test_point_5_the_report_names_the_data_and_says_how_to_continue(tmp_path: Path):
    experiment = Experiment(
        data=Data(source="auto", dir="~/my photos"),
        model=Model(layout="imagenet", depth=18),
        global_batch_size=1,
        replicas=1,
    )
    run = make_folder(tmp_path / "runs", "mine", experiment, finished=False)
    data = read_run(run)
    assert data.description == "ResNet-18 on my photos"
    assert any(note.endswith(f"--run-dir {run.path}") for note in data.notes), data.notes
    page = tmp_path / "page.html"
    report(run.path, out=page)
    assert "this command continues it: paceline train" in page.read_text()
    report(make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1), out=tmp_path / "two.html")
    assert 'data-name="accuracy"' in (tmp_path / "two.html").read_text()


@pytest.mark.parametrize("terminal", [False, True])
def test_point_5_runs_cuts_no_names_at_80_columns(tmp_path: Path, terminal: bool):
    name = "cifar10-resnet56-fast-with-a-long-name-of-its-own-1a2b3c4d"
    make_folder(tmp_path, name, get_recipe("smoke"), True, 0.5)
    forced = {"FORCE_COLOR": "1", "TERM": "xterm"} if terminal else {}
    ended = fine(paceline_here("runs", ".", cwd=tmp_path, environment={"COLUMNS": "80"} | forced))
    assert name in ended.out
    assert "…" not in ended.out


@pytest.mark.parametrize("command", ["info", "check"])
def test_point_5_the_help_of_data_commands_has_only_what_they_use(command: str, tmp_path: Path):
    import io
    from contextlib import redirect_stdout, suppress

    from paceline.cli.commands import main

    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        main(["data", command, "--help"])
    assert "--records.first-label" in out.getvalue()
    for other in ("cutout", "mixup", "flip", "--data.dir", "--data.source"):
        assert other not in out.getvalue()


@pytest.mark.long
def test_point_5_data_info_prints_no_warnings_of_tensorflow(tmp_path: Path):
    """In a process of its own, because TensorFlow writes past Python's standard error."""
    Image.new("RGB", (20, 20)).save(tmp_path / "image.png")
    for place in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / "photos" / place).mkdir(parents=True)
        shutil.copy(tmp_path / "image.png", tmp_path / "photos" / place)
    fine(paceline("data", "convert", "photos", "records", cwd=tmp_path))
    for folder in ("photos", "records"):
        ended = fine(paceline("data", "info", folder, cwd=tmp_path))
        assert ended.err == ""


def test_point_5_an_unfinished_run_has_a_best_checkpoint_only_with_a_validation_split(
    tmp_path: Path,
):
    texts: list[str] = []
    for number, validation in enumerate((0, 8)):
        smoke = get_recipe("smoke")
        experiment = replace(smoke, data=replace(smoke.data, validation=validation))
        run = make_folder(tmp_path, str(number), experiment)
        _note_unfinished(run, "best", lambda message: texts.append(message.text))
    assert ["its last checkpoint" in texts[0], "its best checkpoint" in texts[1]] == [True, True]


def test_point_5_a_dry_run_prints_its_numbers_as_json(tmp_path: Path):
    ended = fine(paceline_here("train", "smoke", "--dry-run", "--json", cwd=tmp_path))
    numbers = json.loads(ended.out.splitlines()[-1])
    assert numbers["total_steps"] == 24
    assert numbers["steps_per_epoch"] * numbers["global_batch_size"] <= numbers["examples"]["train"]
    assert numbers["parameters"] > 0
    assert list(tmp_path.iterdir()) == []
