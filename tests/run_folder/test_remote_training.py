"""Trainings in run folders on remote storage, and data there: real programs and faults."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers import (
    Ended,
    free_port,
    paceline,
    program,
    result_of,
    tf_config,
    wait_until,
    write_own_code,
)
from image_folders import write_images
from in_process import paceline_here
from paceline.api import functions as api
from paceline.api.functions import Result
from paceline.cli.commands import main
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.run_folder.finding import all_runs, existing_run
from paceline.run_folder.folder import RunFolder, default_path
from paceline.storage.files import unsealed
from paceline.storage.lease import read_lease
from paceline.storage.remote import Store
from s3_server import leased_files, put_run

BUSY_S = 300.0
"""Three starts of TensorFlow one after the other, on a machine that does much else."""


def another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use another, empty cache."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache-of-another-host"))


def remote_result(url: str) -> dict[str, Any]:
    content = Store(url).read(leased_files(url)["result.json"])
    assert content is not None
    return unsealed(json.loads(content))


def is_held(url: str) -> bool:
    return read_lease(Store(url))[0].held


def train(url: str, cwd: Path, *flags: str) -> Ended:
    return paceline("train", "smoke", "--run-dir", url, *flags, cwd=cwd)


def train_here(url: str, cwd: Path, *flags: str) -> Ended:
    return paceline_here("train", "smoke", "--run-dir", url, *flags, cwd=cwd)


def one_line(ended: Ended) -> str:
    assert ended.code == 2, ended
    (line,) = ended.err.splitlines()
    return line


def checkpoints(url: str) -> list[int]:
    names = sorted(leased_files(url))
    return [int(name[-20:-12]) for name in names if name.startswith("checkpoints/")]


def test_a_stopped_run_resumes_on_another_host_to_the_same_bits(
    uninterrupted: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = train_here(folder, tmp_path, "--stop-at", "5")
    assert ended.code == 0, ended
    assert ended.last_line["run_dir"] == folder
    assert checkpoints(folder) == [4, 5]
    assert not is_held(folder)
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sorted(left) == ["lock", "worker-0.log"]

    another_host(tmp_path, monkeypatch)
    ended = train_here(folder, tmp_path)
    assert ended.code == 0, ended
    assert "resuming at step 5" in ended.out
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    files = {name for name in Store(folder).files() if not name.startswith("attempts/")}
    files |= set(leased_files(folder))
    checkpoints_there = {name for name in files if name.startswith("checkpoints/")}
    events = {name for name in files if name.startswith("events/")}
    assert checkpoints_there == {f"checkpoints/step-000000{step}.safetensors" for step in (20, 24)}
    assert events == {f"events/events.out.tfevents.000000000{number}" for number in (1, 2)}
    # a log without a line is not listed
    assert files - checkpoints_there - events - {"worker-0.log"} == {
        "lease.json",
        "config.json",
        "metrics.jsonl",
        "chain.jsonl",
        "starts.jsonl",
        "evaluation.npz",
        "result.json",
    }
    again = train_here(folder, tmp_path)
    assert (again.code, "this run is finished" in again.out) == (0, True)
    assert not is_held(folder)

    steps = list(Result(24, True, None, None, None, "", folder).history["step"])
    assert (steps, steps[-1]) == (sorted(set(steps)), 24)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_run_is_taken_over_on_another_host_and_ends_with_the_same_bits(
    uninterrupted: Path, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_LOCK_TIMEOUT_S", "3")
    write_own_code(tmp_path)
    flags = ("train", "smoke", "--run-dir", folder)
    with program(*flags, "--actions", "own.py:wait_for_a_signal", cwd=tmp_path) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running(), BUSY_S)
        for pid in (running.pid, *running.workers()):
            os.kill(pid, signal.SIGKILL)
        running.wait()
    another_host(tmp_path, monkeypatch)
    ended = train(folder, tmp_path)
    assert ended.code == 0, ended
    assert "shows no sign of life: its lock is taken over" in " ".join(ended.out.split())
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.slow
def test_a_damaged_remote_checkpoint_is_skipped_and_removed_and_the_cache_is_not_used(
    uninterrupted: Path, stopped_at_5: Path, folder: str, tmp_path: Path
) -> None:
    put_run(stopped_at_5, folder)
    cut = (stopped_at_5 / "checkpoints" / "step-00000005.safetensors").read_bytes()[:-100]
    Store(folder).put(leased_files(folder)["checkpoints/step-00000005.safetensors"], cut)
    # What an earlier run left here; another host has continued since.
    cache = RunFolder(folder).path / "checkpoints"
    cache.mkdir(parents=True)
    (cache / "step-00000023.safetensors").write_bytes(b"stale")
    ended = train_here(folder, tmp_path)
    assert ended.code == 0, ended
    said = " ".join(ended.out.split())
    assert f"{folder}/checkpoints/step-00000005.safetensors is damaged" in said
    assert "step-00000023" not in said
    assert "resuming at step 4" in said
    assert checkpoints(folder) == [20, 24]
    assert remote_result(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_the_evaluator_watches_a_remote_folder(
    uninterrupted: Path, folder: str, tmp_path: Path
) -> None:
    put_run(uninterrupted, folder)
    before = Store(folder).files()
    environment = tf_config({"chief": ["127.0.0.1:1"]}, "evaluator", model_dir=folder)
    ended = paceline_here("train", "smoke", cwd=tmp_path, environment=environment)
    assert ended.code == 0, ended
    after = Store(folder).files()
    assert {name: after[name] for name in before} == before, "the chief's files are the chief's"
    assert {name.rpartition("/")[0] or name for name in after if name not in before} == {
        "evaluations.jsonl",
        "events/evaluator",
    }
    lines = (Store(folder).read("evaluations.jsonl") or b"").splitlines()
    records = {record["step"]: record for record in map(json.loads, lines)}
    assert records[24]["test_accuracy"] == result_of(uninterrupted)["test_accuracy"]
    assert records[24]["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_existing_run_gives_a_copy_of_a_remote_run_as_it_is_now(
    stopped_at_5: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="no run in s3://"):
        existing_run(f"{folder}/run")
    put_run(stopped_at_5, f"{folder}/run")
    run = existing_run(f"{folder}/run/")
    assert run.where == f"{folder}/run"
    assert run.experiment() == RunFolder(stopped_at_5).experiment()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "step-00000004.safetensors",
        "step-00000005.safetensors",
    ]
    assert run.metrics.read() == RunFolder(stopped_at_5).metrics.read()
    (row,) = api.runs(folder)
    assert (row.name, row.state, row.step) == ("run", "unfinished", 5)
    assert f"--run-dir {folder}/run" in row.note
    assert main(["runs", folder]) == 0
    assert f"--run-dir {folder}/run" in capsys.readouterr().out.replace("\n", "")
    (listed,) = all_runs(folder)
    assert (listed.where, listed.checkpoints.exists()) == (f"{folder}/run", False)
    assert default_path("smoke", Experiment(), folder) == f"{folder}/smoke-{Experiment().digest()}"


ENCODED = ("--data.image-size", "32", "--augment.padding", "0", "--stop-at", "2")


@pytest.mark.slow
def test_images_and_the_records_made_of_them_are_read_from_remote_storage(
    folder: str, tmp_path: Path
) -> None:
    write_images(tmp_path / "pictures", 40, classes=("dark", "light"))
    for path in (tmp_path / "pictures").rglob("*.jpg"):
        Store(folder).put(path.relative_to(tmp_path).as_posix(), path)
    info = paceline_here("data", "info", f"{folder}/pictures", cwd=tmp_path)
    assert (info.code, "all 80 4" in " ".join(info.out.split())) == (0, True), info
    records = f"{folder}/records"
    converted = paceline(
        "data", "convert", f"{folder}/pictures", records, "--shards", "2", cwd=tmp_path
    )
    assert (converted.code, f"ready: --data.dir {records}" in converted.out) == (0, True), converted
    again = paceline_here("data", "convert", "pictures", records, cwd=tmp_path)
    assert "not empty" in one_line(again)
    checked = paceline_here("data", "check", records, cwd=tmp_path)
    assert checked.code == 0, checked
    (tmp_path / "records").mkdir()
    for name in Store(records).files():
        Store(records).get(name, tmp_path / "records" / name)
    digests = []
    for place in (records, "records"):
        flags = ("--data.source", "tfrecord", "--data.dir", place, *ENCODED)
        ended = train_here(f"run-{len(digests)}", tmp_path, *flags)
        assert ended.code == 0, ended
        config = json.loads((tmp_path / f"run-{len(digests)}" / "config.json").read_text())
        assert config["experiment"]["data"]["dir"] == place
        digests.append(ended.last_line["state_sha256"])
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_storage_that_cannot_be_used_is_one_line(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PACELINE_STORAGE_PATIENCE_S", "0.5")
    assert "s3://no-such/run" in one_line(train_here("s3://no-such/run", tmp_path))
    assert not list((tmp_path / "cache" / "runs").iterdir())
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    ended = train("s3://bucket/run", tmp_path, "--max-restarts", "1")
    assert "cannot read s3://bucket/run/lease.json: " in one_line(ended)
    assert "trying again in" in ended.out, "a passing fault is a restart first"
