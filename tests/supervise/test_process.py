"""What a worker started ends with it, however it ends."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from helpers import SOON_S, program, wait_until
from paceline.supervise.process import MARK, end_descendants, new_mark

ACTIONS = """
import subprocess
from pathlib import Path


def start_a_child(step, metrics):
    subprocess.Popen(["sleep", "600"])
    Path(__file__).with_name("reached").touch()
"""


def test_descendants_are_found_without_their_parent_their_mark_or_their_session() -> None:
    mark = new_mark({})
    child = new_mark({MARK: mark})
    other = subprocess.Popen(["sleep", "600"], env=os.environ | {MARK: new_mark({})})
    script = f"{MARK}= sleep 600 >&- & echo $!; {MARK}={child} setsid sleep 600 >&- & echo $!"
    leader = subprocess.Popen(
        ["sh", "-c", script],
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    pids = [int(line) for line in leader.communicate()[0].split()]
    wait_until(lambda: all(_sleeps(pid) for pid in pids), 10.0, "it did not start")
    end_descendants(leader.pid, mark)
    wait_until(lambda: not any(_sleeps(pid) for pid in pids), 10.0, "it lives")
    assert other.poll() is None
    other.kill()
    other.wait()


def _sleeps(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep")
    return False


@pytest.mark.long
@pytest.mark.parametrize("victim", ["the command", "the worker"])
def test_what_a_worker_started_ends_with_it(tmp_path: Path, victim: str) -> None:
    (tmp_path / "own.py").write_text(ACTIONS)
    flags = ("--run-dir", "run", "--max-restarts", "0", "--actions", "own.py:start_a_child")
    with program("train", "smoke", *flags, cwd=tmp_path) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running())
        os.kill(running.pid if victim == "the command" else running.worker(), signal.SIGKILL)
        running.wait_until_gone(SOON_S)
