"""A worker is lost: training continues from the state in the survivors' memory, with the same bits.

The faults happen within step 10 of the recipe smoke, in the middle of a block: the last checkpoint
is that of step 8, and the state before the fault is that of step 10.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from fault_runs import assert_same_run, fault, faults, resumed_at
from helpers import paceline

# victims, workers, phase, step of the newest state
CASES = [
    ("0", "2", "in-update", 11),
    ("0,1,2", "4", "before-exchange", 10),
    ("1,2,3", "4", "in-update", 11),
]


def train(folder: Path, workers: str, environment: dict[str, str], *flags: str) -> Any:
    flags = ("--run-dir", "run", "--workers", workers, "--stall-timeout", "30", *flags)
    ended = paceline("train", "smoke", *flags, cwd=folder, environment=environment)
    assert ended.code == 0, ended
    return ended


def computed(folder: Path, worker: int) -> list[int]:
    return [int(line) for line in (folder / f"computed-{worker}").read_text().split()]


@pytest.mark.parametrize(
    ("victims", "workers", "phase", "newest"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.long) for case in CASES[1:])],
)
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
def test_averaged_weights_continue_from_the_last_round(tmp_path: Path) -> None:
    weights = ("--sync.method", "weights", "--sync.every", "2")
    assert paceline("train", "smoke", *weights, "--run-dir", "whole", cwd=tmp_path).code == 0
    environment = fault(tmp_path, 1, "before-exchange", "SIGKILL", COUNT_FOLDER=str(tmp_path))
    ended = train(tmp_path, "2", environment, *weights)
    assert resumed_at(ended) == 10
    assert_same_run(tmp_path / "run", tmp_path / "whole")


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
