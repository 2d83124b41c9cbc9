"""Workers that fail in every way and at every moment.

The run recovers with the same bits, or it ends and names the worker that failed.
"""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_runs import STALL_S, Pair, assert_same_run, fault, faults, resumed_at, saved_step
from helpers import SOON_S, Program, paceline, program, result_of, wait_until, write_own_code
from in_process import paceline_here

# every phase and every kind, with either worker; the simulation combines them
QUICK = [(0, "save", "SIGKILL"), (1, "evaluation", "SIGSTOP")]
MORE = [(1, "start", "SIGSTOP"), (1, "mid-epoch", "exception"), (0, "save", "SIGSTOP")]
REASONS = {
    "exception": "RuntimeError: something in this worker broke",
    "SIGKILL": "killed by SIGKILL",
    "SIGSTOP": "it is stopped or starved",
}


@pytest.mark.slow
def test_a_run_recovers_from_one_fault_after_the_other_with_the_same_bits(
    uninterrupted: Path, tmp_path: Path
) -> None:
    assert_recovers(QUICK, uninterrupted, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("worker", "phase", "kind"), MORE)
def test_a_run_recovers_with_the_same_bits(
    worker: int, phase: str, kind: str, uninterrupted: Path, tmp_path: Path
) -> None:
    assert_recovers([(worker, phase, kind)], uninterrupted, tmp_path)


def assert_recovers(cases: list[tuple[int, str, str]], uninterrupted: Path, tmp_path: Path) -> None:
    flags = ("--run-dir", "run", "--workers", "2", "--stall-timeout", str(STALL_S))
    ended = paceline("train", "smoke", *flags, cwd=tmp_path, environment=faults(tmp_path, cases))
    assert ended.code == 0, ended
    assert len(list(tmp_path.glob("failed*"))) == len(cases), "every fault happened"
    warnings = [line for line in ended.out.splitlines() if "failed" in line]
    assert len(warnings) == len(cases)
    for worker, _, kind in cases:  # which comes first depends on the length of the blocks
        told = f"worker {worker} failed: {REASONS[kind]}"
        assert any(told in line for line in warnings), "who failed is named, with its own error"
    resumed = [int(step) for step in re.findall(r"resuming at step (\d+)", ended.out)] or [0]
    assert len(resumed) == len(cases)
    assert resumed == sorted(resumed), "nothing older than the last checkpoint is repeated"
    assert_same_run(tmp_path / "run", uninterrupted)


def test_a_worker_that_fails_always_is_named_after_so_many_restarts(tmp_path: Path) -> None:
    flags = ("--run-dir", "run", "--workers", "2", "--max-restarts", "1")
    environment = fault(tmp_path, 1, "start", "SIGKILL", FAULT_AGAIN="yes")
    ended = paceline("train", "smoke", *flags, cwd=tmp_path, environment=environment)
    assert ended.code == 1
    assert (
        ended.err == "paceline: worker 1 failed: killed by SIGKILL; its log is run/worker-1.log\n"
    )
    assert ended.out.count("starting 2 again") == 1


@pytest.mark.long
def test_min_workers_goes_on_with_one_fewer_each_time_and_the_same_bits(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """Worker 1 dies again and again, until there is none."""
    flags = ("--workers", "3", "--max-restarts", "0", "--min-workers", "1")
    environment = fault(tmp_path, 1, "mid-epoch", "SIGKILL", FAULT_AGAIN="yes")
    command = ("train", "smoke", "--run-dir", "run", "--save-every", "0", *flags)
    ended = paceline(*command, cwd=tmp_path, environment=environment)
    assert ended.code == 0, ended
    fewer = re.findall(r"starting (\d) again from the last checkpoint", ended.out)
    assert fewer == ["2", "1"]
    assert resumed_at(ended) > 0
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(lambda running: running.pid, id="the-command", marks=pytest.mark.long),
        pytest.param(lambda running: running.workers()[1], id="worker-1", marks=pytest.mark.slow),
    ],
)
def test_a_sigterm_to_anyone_saves_and_ends_all(
    victim: Callable[[Program], int], uninterrupted: Path, tmp_path: Path
) -> None:
    write_own_code(tmp_path)
    flags = ("train", "smoke", "--run-dir", "run", "--workers", "2")
    with program(*flags, "--actions", "own.py:slowly", cwd=tmp_path) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running())
        os.kill(victim(running), signal.SIGTERM)
        ended = running.wait()
    assert ended.code == 143, ended
    assert ended.err == "stopped by SIGTERM; the same command continues from here\n"
    result = result_of(tmp_path / "run")
    assert not result["finished"]
    assert saved_step(tmp_path / "run") == result["step"] > 0
    ended = paceline_here("train", "smoke", "--run-dir", "run", cwd=tmp_path)
    assert resumed_at(ended) == result["step"]
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.parametrize(
    ("worker", "kind"),
    [
        pytest.param(1, "SIGKILL", marks=pytest.mark.slow),
        pytest.param(1, "SIGSTOP", marks=pytest.mark.long),
        pytest.param(0, "exception", marks=pytest.mark.long),
    ],
)
def test_under_tf_config_everyone_ends_non_zero_and_names_who_is_gone(
    worker: int, kind: str, tmp_path: Path
) -> None:
    phase = "mid-epoch" if kind == "exception" else "before-exchange"
    pair, environment = Pair(tmp_path), fault(tmp_path, worker, phase, kind)
    with (
        pair.task("worker", environment=environment) as follower,
        pair.task("chief", environment=environment) as chief,
    ):
        ended = [chief.wait(), follower.wait()]
    assert [each.code for each in ended] == [1, 1], ended
    assert f"worker {worker} failed: {REASONS[kind]}" in ended[worker].err.splitlines()[-1]
    blamed = f"worker {worker} at {pair.addresses[worker]} failed: no answer"
    assert blamed in ended[1 - worker].err.splitlines()[-1]
    # the state of step 10 in the memory of a chief that survives, or the last checkpoint: with an
    # exception, that before the first block that starts after step 9
    checkpoints = (8, 12) if kind == "exception" else (8,)
    # a worker that stops itself may have sent its part of step 11 by then
    survivors = (10, 11) if kind == "SIGSTOP" else (10,)
    assert saved_step(tmp_path / "chief/run") in (survivors if worker else checkpoints)


@pytest.mark.slow
def test_a_sigterm_ends_a_task_that_waits_for_the_others_at_once(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pair.task("chief") as chief:
        wait_until(lambda: is_listening(pair.addresses[0]))
        os.kill(chief.pid, signal.SIGTERM)
        assert chief.wait(SOON_S).code == 143, "it does not wait for the start timeout"


def is_listening(address: str) -> bool:
    port = f":{int(address.rpartition(':')[2]):04X}"
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(local.endswith(port) and state == "0A" for _, local, _, state, *_ in sockets)
