"""Workers that fail in every way and at every moment.

The run recovers with the same bits, or it ends and names the worker that failed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_runs import STALL_S, Pair, fault, faults, resumed_at, saved_step
from helpers import (
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
from paceline.experiment.recipes.table import get_recipe
from paceline.job import Job, Place, Run
from paceline.launch import launch
from paceline.messages import Message, Warn
from paceline.places import local

QUICK = [(0, "save", "SIGKILL"), (1, "evaluation", "SIGSTOP")]
PHASES, KINDS = ("start", "mid-epoch", "evaluation", "save"), ("exception", "SIGKILL", "SIGSTOP")
# every phase with every kind, and each of these with either worker: every pair, not every triple
PAIRS = [
    ((p + k + (k == 2)) % 2, phase, kind)
    for p, phase in enumerate(PHASES)
    for k, kind in enumerate(KINDS)
]
REASONS = {
    "exception": "RuntimeError: something in this worker broke",
    "SIGKILL": "killed by SIGKILL",
    "SIGSTOP": "it is stopped or starved",
}


def failed_at(folder: Path) -> float:
    return float((folder / "failed").read_text().split()[0])


@pytest.mark.slow
def test_a_run_recovers_from_one_fault_after_the_other_with_the_same_bits(
    uninterrupted: Path, tmp_path: Path
) -> None:
    assert_recovers(QUICK, uninterrupted, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("worker", "phase", "kind"), [case for case in PAIRS if case not in QUICK])
def test_a_run_recovers_with_the_same_bits(
    worker: int, phase: str, kind: str, uninterrupted: Path, tmp_path: Path
) -> None:
    assert_recovers([(worker, phase, kind)], uninterrupted, tmp_path)


def assert_recovers(cases: list[tuple[int, str, str]], uninterrupted: Path, tmp_path: Path) -> None:
    flags = ("--run-dir", "run", "--workers", "2", "--stall-timeout", str(STALL_S))
    saved = []
    with program(
        "train", "smoke", *flags, cwd=tmp_path, environment=faults(tmp_path, cases)
    ) as running:
        for note in ("failed", "failed-1", "failed-2")[: len(cases)]:
            wait_until(lambda note=note: (tmp_path / note).exists() or not running.is_running())
            saved.append(saved_step(tmp_path / "run"))
            victim = Path("/proc", (tmp_path / note).read_text().split()[1])
            gone = lambda victim=victim: not victim.exists()  # noqa: E731
            wait_until(gone, 2 * STALL_S, "nobody noticed")
        ended = running.wait()
    assert ended.code == 0, ended
    warnings = [line for line in ended.out.splitlines() if "failed" in line]
    assert len(warnings) == len(cases)
    for worker, _, kind in cases:  # which comes first depends on the length of the blocks
        told = f"worker {worker} failed: {REASONS[kind]}"
        assert any(told in line for line in warnings), "who failed is named, with its own error"
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    resumed = [int(step) for step in re.findall(r"resuming at step (\d+)", ended.out)] or [0]
    assert len(resumed) == len(cases)
    assert resumed == sorted(resumed), "nothing older than the last checkpoint is repeated"
    assert len(cases) > 1 or resumed[0] >= saved[0]
    steps = [record["step"] for record in metrics_of(tmp_path / "run")]
    assert steps == sorted(set(steps))
    assert losses_of(tmp_path / "run") == losses_of(uninterrupted), "no step is missing or twice"
    evaluated = [each for each in metrics_of(tmp_path / "run") if "test_loss" in each]
    assert [each["step"] for each in evaluated] == [8, 16, 24]


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
@pytest.mark.parametrize("workers", [2, 3])
def test_min_workers_goes_on_with_one_fewer_each_time_and_the_same_bits(
    workers: int, uninterrupted: Path, tmp_path: Path
) -> None:
    """Worker 1 dies again and again, until there is none."""
    flags = ("--workers", str(workers), "--max-restarts", "0", "--min-workers", "1")
    environment = fault(tmp_path, 1, "mid-epoch", "SIGKILL", FAULT_AGAIN="yes")
    command = ("train", "smoke", "--run-dir", "run", "--save-every", "0", *flags)
    ended = paceline(*command, cwd=tmp_path, environment=environment)
    assert ended.code == 0, ended
    fewer = re.findall(r"starting (\d) again from the last checkpoint", ended.out)
    assert fewer == [str(count) for count in range(workers - 1, 0, -1)]
    assert resumed_at(ended) > 0
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


@pytest.mark.long
def test_ports_that_were_taken_meanwhile_are_chosen_again_and_are_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, choose = list[Message](), local._free_addresses
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        tries = iter([taken])
        monkeypatch.setattr(
            local, "_free_addresses", lambda count: (*choose(count - 1), next(tries, choose(1)[0]))
        )
        run = Run(str(tmp_path / "run"), stop_at=1)
        job = Job(get_recipe("smoke"), Place(workers=2, max_restarts=0), run)
        assert launch(job, messages.append)["step"] == 1
    assert [message.text for message in messages if isinstance(message, Warn)] == [
        f"cannot listen at {taken}: another program has its port; "
        "end that, or give another; starting again with other ports"
    ]


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(lambda running: running.pid, id="the-command", marks=pytest.mark.long),
        pytest.param(lambda running: running.workers()[1], id="worker-1"),
        pytest.param(lambda running: running.workers()[0], id="the-chief", marks=pytest.mark.long),
    ],
)
def test_a_sigterm_to_anyone_saves_and_ends_all(
    victim: Callable[[Program], int], uninterrupted: Path, tmp_path: Path
) -> None:
    write_own_code(tmp_path)
    (tmp_path / "own.py").write_text((tmp_path / "own.py").read_text() + SLOWLY)
    flags = ("train", "smoke", "--run-dir", "run", "--workers", "2")
    with program(*flags, "--actions", "own.py:slowly", cwd=tmp_path) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running())
        os.kill(victim(running), signal.SIGTERM)
        ended = running.wait(30)
    assert ended.code == 143, ended
    assert ended.err == "stopped by SIGTERM; the same command continues from here\n"
    result = result_of(tmp_path / "run")
    assert not result["finished"]
    assert saved_step(tmp_path / "run") == result["step"] > 0
    ended = paceline_here("train", "smoke", "--run-dir", "run", cwd=tmp_path)
    assert resumed_at(ended) == result["step"]
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(uninterrupted)["state_sha256"]


SLOWLY = '''

def slowly(step, metrics):
    """Time enough for a signal to come before the last step."""
    (HERE / "reached").write_text(str(step))
    time.sleep(0.5)
'''


@pytest.mark.parametrize(
    ("worker", "kind"),
    [
        (1, "SIGKILL"),
        pytest.param(1, "SIGSTOP", marks=pytest.mark.long),
        pytest.param(0, "SIGKILL", marks=pytest.mark.long),
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
        took = time.time() - failed_at(tmp_path)
    assert [each.code for each in ended] == [1, 1], ended
    assert took < 2 * STALL_S + 15, "nobody waits longer than the timeout, beside the time to tell"
    assert f"worker {worker} failed: {REASONS[kind]}" in ended[worker].err.splitlines()[-1]
    assert f"no answer from {pair.addresses[worker]}" in ended[1 - worker].err.splitlines()[-1]
    # the state of step 10 in the memory of a chief that survives, or the last checkpoint: with an
    # exception, that before the first block that starts after step 9
    checkpoints = (8, 12) if kind == "exception" else (8,)
    assert saved_step(tmp_path / "chief/run") in ((10,) if worker else checkpoints)


@pytest.mark.long
def test_a_sigterm_to_one_task_of_a_tf_config_saves_and_ends_all_with_the_same_code(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(
        f"import time\nfrom pathlib import Path\nHERE = Path({str(tmp_path)!r})\n" + SLOWLY
    )
    pair, slowly = Pair(tmp_path), ("--actions", str(tmp_path / "own.py:slowly"))
    with pair.task("worker") as follower, pair.task("chief", *slowly) as chief:
        wait_until(lambda: (tmp_path / "reached").exists() or not chief.is_running())
        os.kill(follower.pid, signal.SIGTERM)
        codes = [each.wait(30).code for each in (chief, follower)]
    assert codes == [143, 143], "a platform that restarts interrupted tasks restarts all of them"
    result = json.loads((tmp_path / "chief/run/result.json").read_text())
    assert saved_step(tmp_path / "chief/run") == result["step"] > 0
    assert not result["finished"]


@pytest.mark.slow
def test_a_sigterm_ends_a_task_that_waits_for_the_others_at_once(tmp_path: Path) -> None:
    with Pair(tmp_path).task("chief") as chief:
        wait_until(lambda: chief.workers() and cpu_s(chief.worker()) > 1.5)
        os.kill(chief.pid, signal.SIGTERM)
        assert chief.wait(5).code == 143


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.long
def test_a_command_that_was_stopped_blames_no_worker_when_it_goes_on(tmp_path: Path) -> None:
    """As by Ctrl-Z and fg: the workers went on meanwhile, and nobody listened to them."""
    (tmp_path / "own.py").write_text("import time\ndef slowly(step, metrics):\n    time.sleep(3)\n")
    flags = "--run-dir run --workers 2 --stall-timeout 6 --max-restarts 0 --actions own.py:slowly"
    with program("train", "smoke", *flags.split(), cwd=tmp_path) as running:
        wait_until(lambda: saved_step(tmp_path / "run") > 0 or not running.is_running())
        os.kill(running.pid, signal.SIGSTOP)
        time.sleep(12)
        assert not (tmp_path / "run" / "result.json").exists(), "the workers still train"
        os.kill(running.pid, signal.SIGCONT)
        ended = running.wait()
    assert ended.code == 0, ended
