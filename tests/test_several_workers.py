"""Several worker processes of one machine: the same bits as one, and started again when one is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from helpers import paceline, program, result_of, wait_until, write_own_code

WEIGHTS = ("--sync.method", "weights", "--sync.every", "3", "--epochs", "1.25")


def digest_of(folder: Path, name: str, *flags: str) -> str:
    ended = paceline("train", "smoke", "--run-dir", name, *flags, cwd=folder)
    assert ended.code == 0, ended
    return result_of(folder / name)["state_sha256"]


def test_two_workers_give_the_same_bits_as_one(uninterrupted: Path, tmp_path: Path) -> None:
    assert digest_of(tmp_path, "run", "--workers", "2") == result_of(uninterrupted)["state_sha256"]
    one, two = (json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in (uninterrupted, tmp_path / "run"))
    for name in ("test_accuracy", "test_loss", "test_count"):
        assert one[name] == two[name]
    assert (tmp_path / "run" / "worker-1.log").exists()


def test_a_run_resumes_with_another_number_of_workers(uninterrupted: Path, tmp_path: Path) -> None:
    digest_of(tmp_path, "run", "--workers", "4", "--stop-at", "5")
    assert digest_of(tmp_path, "run", "--workers", "2") == result_of(uninterrupted)["state_sha256"]


def test_averaged_weights_give_the_same_bits_on_one_and_four_workers(tmp_path: Path) -> None:
    assert digest_of(tmp_path, "one", *WEIGHTS) == digest_of(tmp_path, "four", *WEIGHTS, "--workers", "4")


def test_a_killed_worker_is_named_and_the_run_goes_on_to_the_same_bits(uninterrupted: Path, tmp_path: Path) -> None:
    write_own_code(tmp_path)
    flags = ("--run-dir", "run", "--workers", "2", "--actions", "own.py:wait_for_a_signal")
    with program("train", "smoke", *flags, cwd=tmp_path) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running())
        os.kill(running.workers()[1], signal.SIGKILL)
        ended = running.wait()
    assert ended.code == 0
    assert "worker 1 failed: killed by SIGKILL" in ended.out
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_a_master_and_a_worker_of_a_tf_config_both_train_and_give_the_same_bits(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        master, worker = (f"127.0.0.1:{each.getsockname()[1]}" for each in (one, two))
    config = {"cluster": {"master": [master], "worker": [worker]}, "model_dir": "run"}

    def task(role: str) -> None:
        monkeypatch.setenv("TF_CONFIG", json.dumps(config | {"task": {"type": role, "index": 0}}))

    task("worker")  # tasks may start in any order
    with program("train", "smoke", cwd=tmp_path) as follower:
        task("master")
        chief = paceline("train", "smoke", cwd=tmp_path)
        followed = follower.wait()
    assert (chief.code, followed.code) == (0, 0), (chief, followed)
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert "2 workers" in chief.out


def test_a_task_that_never_appears_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as own, socket.socket() as absent:
        for each in (own, absent):
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (own, absent)]
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}))
    ended = paceline("train", "smoke", "--run-dir", "run", "--start-timeout", "25", cwd=tmp_path)
    assert ended.code == 1
    assert f"no answer from {addresses[1]}" in ended.err


def test_an_evaluator_is_told_that_the_chief_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    ended = paceline("train", "smoke", "--run-dir", "run", cwd=tmp_path)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert "the chief evaluates" in ended.err
    assert not (tmp_path / "run").exists()
