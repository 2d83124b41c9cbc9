"""Resuming gives the same bits as not stopping, in whichever way the real program is stopped."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers import (
    SOON_S,
    WEIGHTS,
    Ended,
    Program,
    losses_of,
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


def steps_on_disk(run: Path) -> list[int]:
    return sorted(
        int(path.stem.removeprefix("step-"))
        for path in (run / "checkpoints").glob("step-*.safetensors")
    )


def assert_stopped(run: Path, step: int) -> None:
    result = result_of(run)
    assert (result["step"], result["finished"]) == (step, False)
    assert steps_on_disk(run)[-1] == step


def assert_same(
    run: Path,
    other: Path,
    flags: tuple[str, ...] = (),
    program: Callable[..., Ended] = paceline_here,
) -> Ended:
    """Resuming `run` ends where `other` ended, with the same metrics and events."""
    ended = train(run, *flags, program=program)
    assert ended.code == 0, ended.err
    assert (
        result_of(run)["state_sha256"]
        == result_of(other)["state_sha256"]
        == ended.last_line["state_sha256"]
    )
    for name in ("step", "finished", "test_accuracy", "test_loss"):
        assert result_of(run)[name] == result_of(other)[name]
    assert result_of(run)["finished"]
    assert losses_of(run) == losses_of(other)
    assert [step for step, _ in losses_of(run)] == list(range(1, result_of(run)["step"] + 1))
    steps = [record["step"] for record in metrics_of(run)]
    assert steps == sorted(set(steps))
    assert evaluations(run) == evaluations(other)
    assert not list((run / "checkpoints").glob(".*")), "an unfinished file is left"
    return ended


def evaluations(run: Path) -> list[tuple[int, float, float]]:
    return [
        (r["step"], r["test_accuracy"], r["test_loss"]) for r in metrics_of(run) if "test_loss" in r
    ]


@pytest.mark.slow
def test_a_run_stopped_at_the_end_of_an_epoch(uninterrupted: Path, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--stop-at", "8").code == 0
    assert_stopped(tmp_path / "run", 8)
    assert_same(tmp_path / "run", uninterrupted)


def test_a_run_stopped_in_the_middle_of_an_epoch(uninterrupted: Path, run: Path) -> None:
    assert_stopped(run, 5)
    ended = assert_same(run, uninterrupted, program=paceline)
    assert "resuming at step 5 of 24" in ended.out


@pytest.mark.slow
def test_a_run_stopped_twice(uninterrupted: Path, run: Path) -> None:
    assert train(run, "--stop-at", "13").code == 0
    assert_stopped(run, 13)
    assert_same(run, uninterrupted)


@pytest.mark.slow
def test_a_run_stopped_by_signals_saves_first(uninterrupted: Path, run: Path) -> None:
    def ctrl_c(pid: int) -> None:
        os.killpg(pid, signal.SIGINT)

    def terminate(pid: int) -> None:
        os.kill(pid, signal.SIGTERM)

    for send, code, name, step in [(terminate, 143, "SIGTERM", 6), (ctrl_c, 130, "SIGINT", 7)]:
        with training_that_waits(run, step) as running:
            send(running.pid)
            ended = running.wait()
        assert ended.code == code
        assert ended.err == f"stopped by {name}; the same command continues from here\n"
        assert_stopped(run, step)
    assert_same(run, uninterrupted)


def test_a_run_whose_worker_or_parent_is_killed(uninterrupted: Path, run: Path) -> None:
    with training_that_waits(run) as running:
        os.kill(running.worker(), signal.SIGKILL)
        ended = running.wait()
    assert ended.code == 1
    assert (
        ended.err
        == f"paceline: worker 0 failed: killed by SIGKILL; its log is {run / 'worker-0.log'}\n"
    )
    assert steps_on_disk(run)[-1] == 5
    assert metrics_of(run)[-1]["step"] == 6, (
        "there was work after the last checkpoint, which is done again"
    )
    with training_that_waits(run) as running:
        os.kill(running.pid, signal.SIGKILL)
        running.wait_until_gone(SOON_S)
    assert_same(run, uninterrupted)


@pytest.mark.slow
def test_a_run_killed_in_the_middle_of_a_save(uninterrupted: Path, run: Path) -> None:
    for action in ("kill_in_the_middle_of_the_next_write", "kill_before_the_next_rename"):
        flags = ("--actions", f"own.py:{action}", "--max-restarts", "0")
        ended = train(run, *flags, program=paceline)
        assert ended.code == 1
        assert "killed by SIGKILL" in ended.err
        assert steps_on_disk(run) == [4, 5]
        (unfinished,) = (run / "checkpoints").glob(".step-00000008*")
        size = unfinished.stat().st_size
        assert (size < newest_size(run)) == (action == "kill_in_the_middle_of_the_next_write")
    assert_same(run, uninterrupted)


def newest_size(run: Path) -> int:
    return (run / f"checkpoints/step-{steps_on_disk(run)[-1]:08d}.safetensors").stat().st_size


@pytest.mark.slow
def test_a_run_killed_between_its_last_checkpoint_and_its_result(
    uninterrupted: Path, run: Path
) -> None:
    flags = ("--actions", "own.py:kill_at_the_end", "--max-restarts", "0")
    assert train(run, *flags, program=paceline).code == 1
    assert steps_on_disk(run)[-1] == LAST_STEP
    assert_same(run, uninterrupted)


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(
    uninterrupted: Path, run: Path
) -> None:
    newest = run / "checkpoints/step-00000005.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1000] ^= 1
    newest.write_bytes(content)
    out = assert_same(run, uninterrupted).out
    assert f"warning: {newest} is damaged" in out
    assert "resuming at step 4 of 24" in out


@pytest.mark.slow
def test_a_run_that_averages_weights_stops_at_the_end_of_a_round(
    averaged: Path, tmp_path: Path
) -> None:
    assert train(tmp_path / "run", *WEIGHTS, "--stop-at", "5").code == 0
    assert_stopped(tmp_path / "run", 6)
    assert_same(tmp_path / "run", averaged, WEIGHTS)


def test_a_finished_run_says_so_quickly_and_changes_nothing(
    uninterrupted: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    (run / "worker-0.log").unlink()
    before = contents(run)
    began_s = cpu_seconds_of_children()
    ended = train(run, program=paceline)
    assert cpu_seconds_of_children() - began_s < 6.0, (
        "not wall time, because other tests share the cores"
    )
    assert ended.code == 0
    assert "this run is finished" in ended.out
    assert ended.last_line["state_sha256"] == result_of(run)["state_sha256"]
    assert (run / "worker-0.log").read_text() == "", (
        "TensorFlow writes to the log when it is imported"
    )
    (run / "worker-0.log").unlink()
    assert contents(run) == before


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def contents(run: Path) -> dict[str, bytes]:
    """Return every file but the lock, which has the id of the last process that opened the run."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in run.rglob("*")
        if file.is_file() and file.name != "lock"
    }
