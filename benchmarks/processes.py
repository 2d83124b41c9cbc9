"""What /proc tells of a process and its descendants: who they are, their CPU time, their peak memory. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def _status(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name, which may itself hold blanks; None once the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def tree(root: int) -> dict[int, str]:
    """The living processes of a tree: pid -> start time. Together they name a process even after its pid is given away."""
    status = {int(entry.name): _status(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    alive = {pid: fields for pid, fields in status.items() if fields and fields[0] != "Z"}
    found, frontier = {}, [root]
    while frontier:
        pid = frontier.pop()
        if pid in alive:
            found[pid] = alive[pid][19]
        frontier += [child for child, fields in alive.items() if int(fields[1]) == pid and child not in found]
    return found


def tree_cpu_s(root: int) -> float:
    """CPU time of a tree, with children that have ended and were waited for."""
    fields = [status for pid in tree(root) if (status := _status(pid))]
    return sum(int(value) for status in fields for value in status[11:15]) / _TICKS_PER_SECOND


def tree_peak_bytes(root: int) -> int:
    """Sum of the peak resident sizes (VmHWM) of the processes that live now; pages that they share count more than once."""
    total = 0
    for pid in tree(root):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return total


def kill(processes: dict[int, str]) -> None:
    """End the processes of an earlier `tree` that still live."""
    for pid, started in processes.items():
        status = _status(pid)
        if status and status[19] == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
