"""`make chaos`: minutes of random faults that overlap."""

import os
import subprocess
import sys

import pytest

from helpers import SUPPORT


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="small disks are mounted as root")
def test_runs_survive_some_minutes_of_overlapping_faults() -> None:
    command = [sys.executable, str(SUPPORT / "chaos.py"), "--minutes", "4", "--seed", "1000"]
    played = subprocess.run(command, capture_output=True, text=True)
    assert played.returncode == 0, played.stdout
