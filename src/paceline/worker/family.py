"""The family of a worker: the processes that it started, and all that they started.

A worker has a mark in its environment, which its descendants inherit, also those whose parents have
ended, or that lead a session of their own.
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


def end_family(mark: str) -> None:
    """Kill all processes with a mark, except for this one. Linux only.

    Daemons of Ray outlive a driver that was killed by up to a minute.
    """
    start = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with suppress(ValueError, OSError):
            values = Path("/proc", name, "environ").read_bytes().split(b"\0")
            if int(name) != os.getpid() and any(value.startswith(start) for value in values):
                os.kill(int(name), signal.SIGKILL)
