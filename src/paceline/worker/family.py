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


def end_family(leader: int, mark: str) -> None:
    """Kill all processes of a worker's session or with its mark, except for this one. Linux only.

    Daemons of Ray outlive a driver that was killed by up to a minute.
    """
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with suppress(ValueError, OSError):
            pid = int(name)
            belongs = os.getsid(pid) == leader or _has_mark(pid, mark)
            if belongs and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)


def _has_mark(pid: int, mark: str) -> bool:
    values = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(value.startswith(f"{MARK}={mark}".encode()) for value in values)
