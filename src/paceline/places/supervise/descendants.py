"""The family of a worker: the processes that it started, and all that they started.

A worker leads a session, and has a mark in its environment. Its descendants inherit both, also
those whose parents have ended. Some start a session of their own, and daemons of Ray write their
names over their environment.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

MARK = "PACELINE_FAMILY"
"""Environment variable with the marks of a worker and of those above it, separated by slashes."""


def new_mark(environment: Mapping[str, str]) -> str:
    """Return the value of MARK for a worker that is started with an environment."""
    return f"{environment.get(MARK, '')}/{uuid.uuid4().hex}"


def end_families(marks: Mapping[int, str]) -> None:
    """Kill the families of workers (process id -> mark), except for this process. Linux only.

    Daemons of Ray outlive a driver that was killed by up to a minute.
    """
    starts = tuple(f"{MARK}={mark}".encode() for mark in marks.values())
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with suppress(ValueError, OSError):
            pid = int(name)
            belongs = os.getsid(pid) in marks or _has_mark(pid, starts)
            if belongs and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)


def _has_mark(pid: int, starts: tuple[bytes, ...]) -> bool:
    values = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(value.startswith(starts) for value in values)
