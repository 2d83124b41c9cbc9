"""Resuming gives the same bits as not stopping, in whichever way the real program is stopped."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_runs import assert_same_run, saved_step
from helpers import (
    SOON_S,
    WEIGHTS,
    Ended,
    Program,
    metrics_of,
    paceline,
    program,
    result_of,
    wait_until,
    write_own_code,
)
from in_process import paceline_here

LAST_STEP = 24  # of the recipe smoke: 3 epochs of 8 steps, a save every 4, an evaluation every 8


@pytest.fixture
def run(stopped_at_5: Path, tmp_path: Path) -> Path:
    """Return a copy of the stopped run, to resume."""
    write_own_code(tmp_path)
    return Path(shutil.copytree(stopped_at_5, tmp_path / "run"))


def train(run: Path, *flags: str, program: Callable[..., Ended] = paceline_here) -> Ended:
    return program("train", "smoke", "--run-dir", str(run), *flags, cwd=run.parent)


@contextmanager
def training_that_waits(run: Path, step: int = 6) -> Iterator[Program]:
    """Resume the stopped run, and wait after one more step, which has metrics but no checkpoint."""
    reached = run.parent / "reached"
    reached.unlink(missing_ok=True)
    waits = ("--actions", "own.py:wait_for_a_signal", "--max-restarts", "0")
    with program("train", "smoke", "--run-dir", str(run), *waits, cwd=run.parent) as running:
        wait_until(lambda: reached.exists() or not running.is_running())
        assert running.is_running(), running.wait()
        wait_until(lambda: reached.read_text() == str(step), SOON_S)
        yield running


def assert_stopped(run: Path, step: int) -> None:
    result = result_of(run)
    assert (result["step"], result["finished"]) == (step, False)
    assert saved_step(run) == step


def assert_same(
    run: Path,
    other: Path,
    flags: tuple[str, ...] = (),
    program: Callable[..., Ended] = paceline_here,
) -> Ended:
    """Resuming `run` ends where `other` ended, with the same metrics and events."""
    ended = train(run, *flags, program=program)
    assert ended.code == 0, ended.err
    assert ended.last_line["state_sha256"] == result_of(run)["state_sha256"]
    for name in ("state_sha256", "step", "finished", "test_accuracy", "test_loss"):
        assert result_of(run)[name] == result_of(other)[name]
    assert_same_run(run, other)
    assert not list((run / "checkpoints").glob(".*")), "an unfinished file is left"
    return ended


def test_a_run_stopped_in_the_middle_of_an_epoch(uninterrupted: Path, run: Path) -> None:
    assert_stopped(run, 5)
    ended = assert_same(run, uninterrupted, program=paceline)
    assert "resuming at step 5 of 24" in ended.out


@pytest.mark.slow
def test_a_run_stopped_twice(uninterrupted: Path, run: Path) -> None:
    assert train(run, "--stop-at", "13").code == 0
    assert_stopped(run, 13)
    assert_same(run, uninterrupted)


def test_a_run_stopped_by_signals_saves_first(uninterrupted: Path, run: Path) -> None:
    for send, number, step in [(os.kill, signal.SIGTERM, 6), (os.killpg, signal.SIGINT, 7)]:
        with training_that_waits(run, step) as running:
            send(running.pid, number)
            ended = running.wait()
        assert ended.code == 128 + number
        assert ended.err == f"stopped by {number.name}; the same command continues from here\n"
        assert_stopped(run, step)
    assert_same(run, uninterrupted)


def test_a_run_whose_worker_or_parent_is_killed(uninterrupted: Path, run: Path) -> None:
    with training_that_waits(run) as running:
        os.kill(running.worker(), signal.SIGKILL)
        ended = running.wait()
    assert ended.code == 1
    log = run / "worker-0.log"
    assert ended.err == f"paceline: worker 0 failed: killed by SIGKILL; its log is {log}\n"
    assert saved_step(run) == 5
    assert metrics_of(run)[-1]["step"] == 6, "work after the last checkpoint is done again"
    with training_that_waits(run) as running:
        os.kill(running.pid, signal.SIGKILL)
        running.wait_until_gone(SOON_S)
    assert_same(run, uninterrupted)


@pytest.mark.slow
def test_a_run_killed_between_its_last_checkpoint_and_its_result(
    uninterrupted: Path, run: Path
) -> None:
    flags = ("--actions", "own.py:kill_at_the_end", "--max-restarts", "0")
    assert train(run, *flags, program=paceline).code == 1
    assert saved_step(run) == LAST_STEP
    assert_same(run, uninterrupted)


@pytest.mark.slow
def test_a_run_that_averages_weights_stops_at_the_end_of_a_round(
    averaged: Path, tmp_path: Path
) -> None:
    assert train(tmp_path / "run", *WEIGHTS, "--stop-at", "5").code == 0
    assert_stopped(tmp_path / "run", 6)
    assert_same(tmp_path / "run", averaged, WEIGHTS)


def test_a_finished_run_says_so_without_tensorflow_and_changes_nothing(
    uninterrupted: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    (run / "worker-0.log").unlink()
    before = contents(run)
    ended = train(run, program=paceline)
    assert ended.code == 0
    assert "this run is finished" in ended.out
    assert ended.last_line["state_sha256"] == result_of(run)["state_sha256"]
    log = (run / "worker-0.log").read_text()
    assert log == "", "TensorFlow writes to the log when it is imported"
    (run / "worker-0.log").unlink()
    assert contents(run) == before


def contents(run: Path) -> dict[str, bytes]:
    """Return every file but the lock, which has the id of the last process that opened the run."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in run.rglob("*")
        if file.is_file() and file.name != "lock"
    }


@pytest.mark.slow
def test_a_finished_run_of_a_constant_rate_can_be_extended_to_the_same_bits(tmp_path):
    flags = ("--schedule.name", "constant", "--schedule.warmup", "0.5")
    for run, epochs in (("whole", "2"), ("parts", "1"), ("parts", "2")):
        ended = train(tmp_path / run, *flags, "--epochs", epochs)
        assert ended.code == 0, ended.err
    assert result_of(tmp_path / "parts")["step"] == 16
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    ended = train(tmp_path / "parts", "--schedule.warmup", "0.5", "--epochs", "4")
    assert ended.code == 2
