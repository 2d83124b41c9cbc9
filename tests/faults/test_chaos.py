"""`make chaos`: what it checks can fail, and ten minutes of random faults that overlap."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from chaos_checks import check_attempt
from helpers import SUPPORT, Ended

STOP = {"fault": "stop", "at": 1.0, "seconds": 2.0, "what": "SIGSTOP of a worker"}
FULL = STOP | {"fault": "full disk"}
STARVED = "paceline: worker 1 failed: it is stopped or starved"
LOST = (1, "paceline: worker 1 failed: another worker is gone; no answer from h:1")
SRUN = "srun: error: n1: task 0: Exited"


@pytest.mark.parametrize(
    ("ends", "faults", "is_right"),
    [
        ([(1, STARVED)], [STOP], True),
        ([(1, f"{STARVED}\n{SRUN}")], [STOP], True),
        ([(2, "paceline: cannot write run: No space left on device"), LOST], [FULL], True),
        ([(1, "paceline: worker 1 failed: killed by SIGKILL")], [STOP], False),
        ([(2, STARVED)], [], False),
        ([(1, "Traceback (most recent call last):")], [STOP], False),
        ([(3, STARVED)], [STOP], False),
        ([(1, SRUN)], [STOP], False),
        ([LOST, LOST], [FULL], False),
    ],
)
def test_a_command_must_name_a_fault_that_was_there(
    ends: list[tuple[int, str]], faults: list[dict[str, Any]], is_right: bool
) -> None:
    attempt = [Ended(code, "", text) for code, text in ends]
    if is_right:
        check_attempt(attempt, faults)
        return
    with pytest.raises(AssertionError):
        check_attempt(attempt, faults)


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
