"""A worker is lost: training continues from the state in the survivors' memory, with the same bits.

The faults happen within step 10 of the recipe smoke, in the middle of a block: the last checkpoint
is that of step 8, and the state before the fault is that of step 10.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fault_runs import evaluations, fault, faults, resumed_at, saved_step
from helpers import (
    free_addresses,
    losses_of,
    metrics_of,
    paceline,
    program,
    result_of,
    tf_config,
    wait_until,
)
from paceline.run_folder.folder import RunFolder

STEPS = list(range(1, 25))
LONG = pytest.mark.long
# victims, workers, phase, step of the newest state
CASES = [
    pytest.param("0", "2", "in-update", 11, id="the chief, between two vectors of the update"),
    pytest.param("1", "2", "before-exchange", 10, id="before the exchange", marks=LONG),
    pytest.param("0", "2", "before-exchange", 10, id="the chief, before the exchange", marks=LONG),
    pytest.param("1", "2", "in-update", 11, id="between two vectors of the update", marks=LONG),
    pytest.param("1", "4", "in-exchange", 10, id="in the exchange", marks=LONG),
    pytest.param("0", "4", "in-exchange", 10, id="the chief, in the exchange", marks=LONG),
    pytest.param("1", "4", "between-pairs", 10, id="between two pairs", marks=LONG),
    pytest.param("0", "4", "between-pairs", 10, id="the chief, between two pairs", marks=LONG),
    pytest.param("1,2", "4", "between-pairs", 10, id="two between two pairs", marks=LONG),
    pytest.param("1,2", "4", "in-exchange", 10, id="two at once", marks=LONG),
    pytest.param("0,1,2", "4", "before-exchange", 10, id="all but one", marks=LONG),
    pytest.param("1,2,3", "4", "in-update", 11, id="all but the chief", marks=LONG),
]


def train(folder: Path, workers: str, environment: dict[str, str], *flags: str) -> Any:
    flags = ("--run-dir", "run", "--workers", workers, "--stall-timeout", "30", *flags)
    ended = paceline("train", "smoke", *flags, cwd=folder, environment=environment)
    assert ended.code == 0, ended
    return ended


def assert_same_run(run: Path, uninterrupted: Path) -> None:
    """Same bits, and neither a gap nor a repeat in what was measured."""
    assert result_of(run)["state_sha256"] == result_of(uninterrupted)["state_sha256"]
    assert losses_of(run) == losses_of(uninterrupted)
    assert [step for step, _ in losses_of(run)] == STEPS
    assert evaluations(run) == evaluations(uninterrupted)
    steps = [record["step"] for record in metrics_of(run)]
    assert steps == sorted(set(steps))


def computed(folder: Path, worker: int) -> list[int]:
    return [int(line) for line in (folder / f"computed-{worker}").read_text().split()]


@pytest.mark.parametrize(("victims", "workers", "phase", "newest"), CASES)
def test_at_most_one_round_is_computed_twice(
    victims: str, workers: str, phase: str, newest: int, uninterrupted: Path, tmp_path: Path
) -> None:
    cases = [(int(victim), phase, "SIGKILL") for victim in victims.split(",")]
    ended = train(tmp_path, workers, faults(tmp_path, cases, COUNT_FOLDER=str(tmp_path)))
    assert len(list(tmp_path.glob("failed*"))) == len(cases), "every fault happened"
    assert resumed_at(ended) == newest
    assert_same_run(tmp_path / "run", uninterrupted)
    for worker in range(int(workers)):
        steps = computed(tmp_path, worker)
        assert set(steps) == set(range(24))
        assert len(steps) - len(set(steps)) <= 1, f"worker {worker} computed {steps}"


@pytest.mark.long
def test_the_checkpoint_is_used_if_every_survivor_was_in_the_middle_of_its_update(
    uninterrupted: Path, tmp_path: Path
) -> None:
    ended = train(tmp_path, "2", fault(tmp_path, 1, "torn", "SIGKILL"))
    assert (tmp_path / "torn").exists()
    assert resumed_at(ended) == 8
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.long
def test_averaged_weights_continue_from_the_last_round(tmp_path: Path) -> None:
    weights = ("--sync.method", "weights", "--sync.every", "2")
    assert paceline("train", "smoke", *weights, "--run-dir", "whole", cwd=tmp_path).code == 0
    environment = fault(tmp_path, 1, "before-exchange", "SIGKILL", COUNT_FOLDER=str(tmp_path))
    ended = train(tmp_path, "2", environment, *weights)
    assert resumed_at(ended) == 10
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.long
def test_all_workers_take_part_again_after_the_next_checkpoint(
    uninterrupted: Path, tmp_path: Path
) -> None:
    flags = ("--max-restarts", "0", "--min-workers", "1")
    ended = train(tmp_path, "2", fault(tmp_path, 1, "before-exchange", "SIGKILL"), *flags)
    assert "continuing with 2 workers again, no longer 1" in ended.out
    starts = [(each["step"], each["workers"]) for each in starts_of(tmp_path / "run")]
    assert [workers for _, workers in starts] == [2, 1, 2]
    assert 10 == starts[1][0] < starts[2][0] < 24
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.long
def test_an_action_sees_every_block_and_at_most_the_interrupted_one_twice(
    uninterrupted: Path, tmp_path: Path
) -> None:
    """The chief dies in the action of a block; it is repeated unless its checkpoint was saved."""
    (tmp_path / "own.py").write_text(DIES_ONCE)
    train(tmp_path, "2", {}, "--actions", "own.py:note")
    noted = [int(line) for line in (tmp_path / "noted").read_text().split()]
    died = int((tmp_path / "died").read_text())
    assert [step for step in set(noted) if noted.count(step) > 1] in ([], [died])
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in metrics} == set(noted)
    assert noted == sorted(noted)
    assert_same_run(tmp_path / "run", uninterrupted)


DIES_ONCE = """
import os, signal
from pathlib import Path

def note(step, metrics):
    with open("noted", "a") as file:
        print(step, file=file)
    if step >= 9 and not Path("died").exists():
        Path("died").write_text(str(step))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def starts_of(run: Path) -> list[dict[str, Any]]:
    return RunFolder(run).starts.read()


NUM_TASKS = 3


@pytest.mark.parametrize(
    ("order", "apart_s"),
    [
        pytest.param((0, 1, 2), 15.0, marks=LONG),
        pytest.param((1, 0, 2), 15.0, marks=LONG),
        pytest.param((2, 1, 0), 80.0, marks=LONG),
    ],
    ids=["chief first", "any order", "minutes apart, chief last"],
)
def test_tasks_of_a_tf_config_that_start_far_apart_meet(
    order: tuple[int, ...], apart_s: float, uninterrupted: Path, tmp_path: Path
) -> None:
    """Those that wait do so for longer than the stall timeout."""
    cluster = {"worker": free_addresses(NUM_TASKS)}
    flags = ("--stall-timeout", "12", "--stop-at", "4")
    ended = meet_in(order, apart_s, cluster, flags, tmp_path)
    assert [each.code for each in ended.values()] == [0] * NUM_TASKS, ended
    digests = {each.last_line["state_sha256"] for each in ended.values()}
    assert len(digests) == 1
    late = order[-1]
    assert f"waiting for worker {late} at {cluster['worker'][late]}" in ended[order[0]].out


def meet_in(
    order: tuple[int, ...],
    apart_s: float,
    cluster: dict[str, list[str]],
    flags: tuple[str, ...],
    folder: Path,
) -> dict[int, Any]:
    """Start the tasks one after another; return how they ended."""
    with ExitStack() as stack:
        tasks = {}
        for index in order:
            own = folder / str(index)
            own.mkdir()
            environment = tf_config(cluster, "worker", index)
            tasks[index] = stack.enter_context(
                program("train", "smoke", *flags, cwd=own, environment=environment)
            )
            wait_until(tasks[index].workers)
            if index != order[-1]:
                time.sleep(apart_s)
                assert all(task.is_running() for task in tasks.values())
        return {index: task.wait(300.0) for index, task in tasks.items()}


@pytest.mark.long
def test_a_run_continues_from_what_the_chief_of_a_tf_config_saved(
    uninterrupted: Path, tmp_path: Path
) -> None:
    addresses = free_addresses(2)
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    environment = fault(tmp_path, 1, "before-exchange", "SIGKILL")
    with (
        program(
            "train", "smoke", cwd=tmp_path, environment=tf_config(cluster, "worker") | environment
        ) as follower,
        program(
            "train", "smoke", cwd=tmp_path, environment=tf_config(cluster, "chief") | environment
        ) as chief,
    ):
        assert [chief.wait().code, follower.wait().code] == [1, 1]
    assert saved_step(tmp_path / "run") == 10
    ended = paceline("train", "smoke", "--run-dir", "run", cwd=tmp_path)
    assert resumed_at(ended) == 10
    assert_same_run(tmp_path / "run", uninterrupted)
