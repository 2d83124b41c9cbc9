"""`make chaos`: what it checks can fail, and ten minutes of random faults that overlap."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from chaos import Round, count
from chaos_checks import check_attempt
from chaos_scene import PLACES, plan_of
from helpers import SUPPORT, Ended

STOP = {"fault": "stop", "at": 1.0, "seconds": 2.0, "what": "SIGSTOP of a worker"}


def test_a_round_follows_from_its_seed_and_every_place_and_number_of_workers_comes() -> None:
    plans = [plan_of(random.Random(seed)) for seed in range(300)]
    assert plans == [plan_of(random.Random(seed)) for seed in range(300)]
    assert {plan.place for plan in plans} == set(PLACES)
    assert {(plan.place, plan.workers) for plan in plans} >= {(p, 3) for p in PLACES[1:]}
    assert {(plan.place, plan.storage) for plan in plans} >= {(p, "s3") for p in PLACES}
    assert {plan.method for plan in plans} == {"gradients", "weights"}


@pytest.mark.parametrize(
    ("code", "line", "faults"),
    [
        (1, "paceline: worker 1 failed: killed by SIGKILL", [STOP]),
        (2, "paceline: it is stopped or starved", []),
        (1, "Traceback (most recent call last):", [STOP]),
        (3, "paceline: it is stopped or starved", [STOP]),
    ],
    ids=["another cause", "no fault", "a traceback", "an unknown exit code"],
)
def test_an_end_that_does_not_name_a_fault_that_was_there_is_found(
    code: int, line: str, faults: list[dict[str, object]]
) -> None:
    check_attempt([Ended(1, "", "paceline: worker 1 failed: it is stopped or starved")], [STOP])
    with pytest.raises(AssertionError):
        check_attempt([Ended(code, "", line)], faults)


def test_a_task_that_lost_another_leaves_the_cause_to_it() -> None:
    full = STOP | {"fault": "full disk"}
    lost = Ended(1, "", "paceline: worker 1 failed: another worker is gone; no answer from h:1")
    named = Ended(2, "", "paceline: cannot write run: No space left on device")
    check_attempt([named, lost], [full])
    with pytest.raises(AssertionError):
        check_attempt([lost, lost], [full])


def test_srun_speaks_after_its_tasks() -> None:
    lines = "paceline: worker 0 failed: it is stopped or starved\nsrun: error: n1: task 0: Exited"
    check_attempt([Ended(1, "", lines)], [STOP])
    with pytest.raises(AssertionError):
        check_attempt([Ended(1, "", lines.splitlines()[1])], [STOP])


def test_rounds_of_several_plays_are_added_up(tmp_path: Path) -> None:
    good = Round(1, plan_of(random.Random(1)), faults=[STOP, STOP], seconds=60)
    bad = Round(2, plan_of(random.Random(2)), faults=[STOP], result="another digest", seconds=60)
    for name, each in (("one", good), ("two", bad)):
        (tmp_path / name).write_text(json.dumps(asdict(each)) + "\n")
    text = count([str(tmp_path / "one"), str(tmp_path / "two")])
    assert "2 rounds in 2 minutes" in text
    assert "faults: stop 3" in text
    assert "failed: [2]" in text


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="small disks are mounted as root")
def test_trainings_survive_ten_minutes_of_overlapping_faults() -> None:
    script = SUPPORT / "chaos.py"
    played = subprocess.run(
        [sys.executable, str(script), "--minutes", "10", "--seed", "1000"],
        capture_output=True,
        text=True,
    )
    assert played.returncode == 0, played.stdout
