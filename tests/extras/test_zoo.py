"""The zoo: an entry is listed, evaluated like its run, starts other trainings, and is made again
with the same digest."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from helpers import once_per_session, paceline, result_of
from in_process import paceline_here
from paceline.errors import UserError
from paceline.extras.zoo import FOLDER, add_entry, find_row
from paceline.maths.state import StateLayout
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.finding import existing_run
from paceline.storage.files import read_json, sealed, write_json

STEPS = "3"


@pytest.fixture(scope="session")
def zoo(uninterrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        flags = (str(uninterrupted), "smoke-resnet8", ".", "--steps", STEPS)
        ended = paceline("zoo", "add", *flags, cwd=folder)
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
    assert row.experiment.data.dir == ""


@pytest.mark.long
def test_an_entry_is_evaluated_and_listed_like_its_run(zoo: Path, uninterrupted: Path):
    listed = paceline("zoo", cwd=zoo)
    assert listed.code == 0
    assert "smoke-resnet8" in listed.out
    found = [
        json.loads(paceline("eval", run, "--json", cwd=zoo).out)
        for run in ("zoo:smoke-resnet8", str(uninterrupted))
    ]
    for name in ("accuracy", "loss", "classes"):
        assert found[0][name] == found[1][name]


def test_an_entry_does_not_contain_the_folder_of_its_data(uninterrupted: Path, tmp_path: Path):
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    config = read_json(run / "config.json", "")
    config["experiment"]["data"]["dir"] = "../mine"
    write_json(run / "config.json", sealed(config | {"data_dir": "/home/me/mine"}))
    entry = add_entry(replace(find_row("smoke-resnet8"), name="copy"), run, tmp_path / "entries")
    assert "mine" not in (entry / "config.json").read_text()


def test_a_damaged_entry_is_refused(zoo: Path, tmp_path: Path):
    (file,) = (entry_of(zoo) / "checkpoints").iterdir()
    tensors = load_file(file)
    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata()
    parts = {
        vector: tuple(
            (name.partition("/")[2], tuple(shape))
            for name, shape in json.loads(metadata["variables"])
            if name.startswith(f"{vector}/")
        )
        for vector in ("params", "stats")
    }
    layout = StateLayout({**parts, "momentum": parts["params"]})
    assert Checkpoints(file.parent, layout).load(24).vectors.keys() == {"params", "stats"}
    name = sorted(tensors)[0]
    save_file(tensors | {name: tensors[name] + 1}, tmp_path / file.name, metadata)
    with pytest.raises(UserError, match="is damaged"):
        Checkpoints(tmp_path, layout).load(24)


@pytest.fixture
def elsewhere(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine's copy of the zoo, which this one does not know."""
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(zoo, tmp_path / "elsewhere"))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder by HTTP; yield its URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("by_http", [False, True], ids=["folder", "http"])
def test_a_fetched_entry_is_found_like_one_of_the_package(elsewhere: Path, by_http: bool) -> None:
    with served(elsewhere) if by_http else nullcontext(str(elsewhere)) as source:
        ended = paceline_here("zoo", "fetch", "smoke-resnet8", source, cwd=elsewhere)
    assert ended.code == 0, ended
    shutil.rmtree(elsewhere)
    assert find_row("smoke-resnet8").first_steps == int(STEPS)
    assert existing_run("zoo:smoke-resnet8").read_result()["finished"]


@pytest.mark.parametrize("file", ["zoo.json", "checkpoints"])
def test_an_entry_that_arrives_damaged_is_not_kept(elsewhere: Path, file: str) -> None:
    place = elsewhere / "smoke-resnet8" / file
    place = next(place.iterdir()) if place.is_dir() else place
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.write_bytes(content)
    ended = paceline_here("zoo", "fetch", "smoke-resnet8", str(elsewhere), cwd=elsewhere)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended
    assert not list((elsewhere.parent / "cache" / "zoo").iterdir())


@pytest.mark.parametrize("name", ["smoke", "../smoke-resnet8"])
def test_an_entry_that_is_not_there_is_told(elsewhere: Path, name: str) -> None:
    ended = paceline_here("zoo", "fetch", name, str(elsewhere), cwd=elsewhere)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended


def test_an_unknown_entry_is_an_error_with_the_nearest_name():
    with pytest.raises(UserError, match=r"the zoo has no 'smoke-resnet'; did you mean 'smoke-resn"):
        existing_run("zoo:smoke-resnet")


@pytest.mark.long
def test_an_entry_starts_another_training(zoo: Path, tmp_path: Path):
    flags = ("--run-dir", "run", "--model.init-from", "zoo:smoke-resnet8", "--stop-at", "2")
    ended = paceline("train", "smoke", *flags, cwd=tmp_path)
    assert ended.code == 0, ended
    assert "started from zoo:smoke-resnet8; new are none" in ended.out


@pytest.mark.slow
def test_the_first_steps_of_an_entry_are_made_again_with_the_same_digest(zoo: Path, tmp_path: Path):
    same = paceline("reproduce", "smoke-resnet8", "--steps", STEPS, cwd=tmp_path)
    assert same.code == 0, same
    assert f"after {STEPS} steps: the same digest" in same.out
    other = paceline("reproduce", "smoke-resnet8", "--steps", "7", cwd=tmp_path)
    assert other.code == 2
    assert "has digests after 3 and 24 steps" in other.err


@pytest.mark.long
def test_the_whole_entry_is_made_again_and_another_digest_is_told(zoo: Path, tmp_path: Path):
    assert paceline("reproduce", "smoke-resnet8", cwd=tmp_path).code == 0
    copy = tmp_path / "zoo" / "smoke-resnet8"
    shutil.copytree(entry_of(zoo), copy)
    other = {"first_sha256": "0" * 64, "cpu": "a CPU of 1979"}
    row = read_json(copy / "zoo.json", "") | other
    write_json(copy / "zoo.json", sealed(row))
    ended = paceline(
        *("reproduce", "smoke-resnet8", "--steps", STEPS),
        cwd=tmp_path,
        environment={FOLDER: str(tmp_path / "zoo")},
    )
    assert ended.code == 1
    assert "ANOTHER digest" in ended.out
    assert "another CPU can give other bits: zoo a CPU of 1979, here" in ended.out
