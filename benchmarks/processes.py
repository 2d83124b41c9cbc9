"""A group of processes in /proc: its members, their CPU time and peak memory. Linux only.

A group has a mark in the environment of its first process. Descendants inherit the mark, also those
that leave the session or lose their parent.
"""

import contextlib
import os
import signal
import time
import uuid
from pathlib import Path

_VARIABLE = "PACELINE_BENCH_MARK"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_KILL_TIMEOUT_S = 10.0


def new_mark() -> dict[str, str]:
    """Return the variable that marks a new group, to be added to an environment."""
    return {_VARIABLE: uuid.uuid4().hex}


def own_mark() -> dict[str, str]:
    """Return the mark of the group of this process."""
    return {_VARIABLE: os.environ[_VARIABLE]}


def read(pid: int, name: str) -> str:
    """Return a file of a process; empty if it has ended or belongs to another user."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""


def group(mark: dict[str, str]) -> list[int]:
    """Return the living processes of a group."""
    wanted = f"{_VARIABLE}={mark[_VARIABLE]}"
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted in read(pid, "environ").split("\0")]


def cpu_s(mark: dict[str, str]) -> float:
    """Return the CPU time of a group, with children that have ended and were waited for."""
    # The command's name stands in brackets and may itself hold blanks.
    fields = [read(pid, "stat").rpartition(")")[2].split() for pid in group(mark)]
    return (
        sum(int(value) for of_process in fields for value in of_process[11:15]) / _TICKS_PER_SECOND
    )


def peak_bytes(mark: dict[str, str]) -> int:
    """Return the sum of the peak resident sizes (VmHWM) of the living processes.

    Pages that they share count more than once.
    """
    return sum(peak_bytes_of(pid) for pid in group(mark))


def peak_bytes_of(pid: int) -> int:
    return sum(
        int(line.split()[1]) * 1024
        for line in read(pid, "status").splitlines()
        if line.startswith("VmHWM:")
    )


def command_of(pid: int) -> str:
    return read(pid, "cmdline").replace("\0", " ")


def kill(mark: dict[str, str]) -> None:
    """End all processes of a group, also those that start meanwhile."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while (pids := group(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
