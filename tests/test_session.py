"""A worker's session: what it started ends with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from helpers import program, wait_until
from paceline.worker.session import end_session

ACTIONS = """
import subprocess
from pathlib import Path


def start_a_child(step, metrics):
    subprocess.Popen(["sleep", "600"])
    Path(__file__).with_name("reached").touch()
"""


def test_only_the_leader_of_a_session_is_left() -> None:
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; exec sleep 600"],
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert leader.stdout
    child = int(leader.stdout.readline())
    end_session(leader.pid)
    wait_until(lambda: ") Z " in Path(f"/proc/{child}/stat").read_text(), 10.0, "it lives")
    assert leader.poll() is None
    leader.kill()
    leader.communicate()


@pytest.mark.long
@pytest.mark.parametrize("victim", ["the command", "the worker"])
def test_what_a_worker_started_ends_with_it(tmp_path: Path, victim: str) -> None:
    (tmp_path / "own.py").write_text(ACTIONS)
    flags = ("--run-dir", "run", "--max-restarts", "0", "--actions", "own.py:start_a_child")
    with program("train", "smoke", *flags, cwd=tmp_path) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running())
        os.kill(running.pid if victim == "the command" else running.worker(), signal.SIGKILL)
        running.wait_until_gone(5.0)
