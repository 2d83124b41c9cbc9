"""The zoo: an entry is listed, evaluated like its run, starts other trainings, and is made again
with the same digest."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks.pack_zoo import pack
from safetensors.numpy import load_file

from helpers import once_per_session, paceline, result_of
from in_process import paceline_here
from paceline.errors import UserError
from paceline.experiment.fields import Json
from paceline.extras import zoo as zoo_module
from paceline.extras.zoo import ARCHIVES, FOLDER, PACKAGE, find_row
from paceline.run_folder.finding import existing_run
from paceline.storage.files import read_json, sealed, write_json

STEPS = "3"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def zoo(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        flags = (str(uninterrupted), "smoke-resnet8", ".", "--steps", STEPS, "--command", "train")
        program = (sys.executable, "-m", "benchmarks.add_to_zoo")
        ended = paceline(*flags, cwd=folder, command=program, environment={"PYTHONPATH": str(ROOT)})
        assert ended.code == 0, ended

    return once_per_session(tmp_path_factory, "zoo", make)


@pytest.fixture(autouse=True)
def in_this_process(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(zoo))


def entry_of(zoo: Path) -> Path:
    return zoo / "smoke-resnet8"


@pytest.mark.slow
def test_an_entry_has_the_digest_of_its_run_and_half_of_its_bytes(zoo: Path, uninterrupted: Path):
    row = find_row("zoo:smoke-resnet8")
    assert row.state_sha256 == result_of(uninterrupted)["state_sha256"]
    assert row.test_accuracy == result_of(uninterrupted)["test_accuracy"]
    (file,) = (entry_of(zoo) / "checkpoints").iterdir()
    last = uninterrupted / "checkpoints" / file.name
    assert file.stat().st_size < 0.7 * last.stat().st_size
    whole, weights = load_file(last), load_file(file)
    assert {name for name in whole if not name.startswith("momentum/")} == weights.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, whole[name])
    config = read_json(entry_of(zoo) / "config.json", "")
    assert (config["data_dir"], config["experiment"]["data"]["dir"]) == ("", "")
    card = (entry_of(zoo) / "MODEL_CARD.md").read_text()
    assert row.state_sha256 in card
    assert "License of the weights" in card


@pytest.mark.long
def test_an_entry_is_listed_evaluated_like_its_run_and_starts_another_training(
    zoo: Path, uninterrupted: Path, tmp_path: Path
):
    assert "smoke-resnet8" in paceline("zoo", cwd=zoo).out
    found = [
        json.loads(paceline("eval", run, "--json", cwd=zoo).out)
        for run in ("zoo:smoke-resnet8", str(uninterrupted))
    ]
    for name in ("accuracy", "loss", "classes"):
        assert found[0][name] == found[1][name]
    flags = ("--run-dir", "run", "--model.init-from", "zoo:smoke-resnet8", "--stop-at", "2")
    ended = paceline("train", "smoke", *flags, cwd=tmp_path)
    assert "started from zoo:smoke-resnet8; new are none" in ended.out, ended


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Json]:
    """The folder of an archive of an entry that is in no package, and its row."""
    entry = tmp_path / "made" / "far-away"
    shutil.copytree(PACKAGE / "shapes-resnet8", entry)
    write_json(entry / "zoo.json", sealed(read_json(entry / "zoo.json", "") | {"name": entry.name}))
    package, out = tmp_path / "package", tmp_path / "out"
    package.mkdir()
    row = pack(entry, out)
    write_json(package / ARCHIVES, {entry.name: row})
    monkeypatch.setattr(zoo_module, "PACKAGE", package)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return out, row


def test_an_archive_has_the_same_bytes_each_time(packed: tuple[Path, Json], tmp_path: Path):
    assert pack(tmp_path / "made" / "far-away", tmp_path / "again") == packed[1]


@pytest.mark.parametrize("address", [str, Path.as_uri])
def test_an_entry_is_fetched_checked_and_used(
    address: Callable[[Path], str], packed: tuple[Path, Json], tmp_path: Path
):
    listed = paceline_here("zoo", cwd=tmp_path).out
    assert re.search(r"far-away +936 +0\.9702 +0\.\d MB +fetch", listed), listed
    refused = paceline_here("eval", "zoo:far-away", cwd=tmp_path)
    assert "fetch it with `paceline zoo fetch far-away FROM`" in refused.err
    fetched = paceline_here("zoo", "fetch", "far-away", address(packed[0]), cwd=tmp_path)
    assert fetched.code == 0, fetched
    assert fetched.out == "ready: zoo:far-away\n"
    assert existing_run("zoo:far-away").read_result()["state_sha256"].startswith("8a62874f")
    assert re.search(r"far-away .* here", paceline_here("zoo", cwd=tmp_path).out)
    again = paceline_here("zoo", "fetch", "zoo:far-away", "/nowhere", cwd=tmp_path)
    assert again.code == 0, again


def test_a_changed_archive_is_refused_and_leaves_nothing(packed: tuple[Path, Json], tmp_path: Path):
    (archive,) = packed[0].iterdir()
    archive.write_bytes(archive.read_bytes().replace(b"shapes", b"sharks"))
    ended = paceline_here("zoo", "fetch", "far-away", str(packed[0]), cwd=tmp_path)
    assert ended.code == 2
    assert "not the published" in ended.err
    assert list((tmp_path / "cache" / "zoo").iterdir()) == []
    ended = paceline_here("zoo", "fetch", "far-awa", "/nowhere", cwd=tmp_path)
    assert "did you mean 'far-away'" in ended.err


def test_an_unknown_entry_is_an_error_with_the_nearest_name():
    with pytest.raises(UserError, match=r"the zoo has no 'smoke-resnet'; did you mean 'smoke-resn"):
        existing_run("zoo:smoke-resnet")


@pytest.mark.slow
def test_the_first_steps_of_an_entry_are_made_again_with_the_same_digest(zoo: Path, tmp_path: Path):
    same = paceline("reproduce", "smoke-resnet8", "--steps", STEPS, cwd=tmp_path)
    assert same.code == 0, same
    assert re.match(r"checked 12.5 % of 24 steps in \d+ s: equal\n", same.out)
    other = paceline("reproduce", "smoke-resnet8", "--steps", "7", cwd=tmp_path)
    assert other.code == 2
    assert "has digests after 3 and 24 steps" in other.err


@pytest.mark.long
def test_the_whole_entry_is_made_again_and_another_digest_is_told(zoo: Path, tmp_path: Path):
    assert paceline("reproduce", "smoke-resnet8", cwd=tmp_path).code == 0
    copy = tmp_path / "zoo" / "smoke-resnet8"
    shutil.copytree(entry_of(zoo), copy)
    other = {"first_sha256": "0" * 64}
    row = read_json(copy / "zoo.json", "") | other
    write_json(copy / "zoo.json", sealed(row))
    ended = paceline(
        *("reproduce", "smoke-resnet8", "--steps", STEPS),
        cwd=tmp_path,
        environment={FOLDER: str(tmp_path / "zoo")},
    )
    assert ended.code == 1
    assert "DIFFERENT\na step after 0, at the latest step 3\n" in ended.out
