"""Ten minutes of random faults that overlap, as `make chaos` plays them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="small disks are mounted as root")
def test_trainings_survive_ten_minutes_of_overlapping_faults() -> None:
    script = Path(__file__).with_name("chaos.py")
    played = subprocess.run(
        [sys.executable, str(script), "--minutes", "10", "--seed", "1000"],
        capture_output=True,
        text=True,
    )
    assert played.returncode == 0, played.stdout
