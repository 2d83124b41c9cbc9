"""The descendants of a worker: the processes that it started, and all that they started.

A worker leads a session and has a mark in its environment. Its descendants inherit both, even if
their parents have ended. Some start their own session, and daemons of Ray overwrite their
environment with their names.
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
"""Environment variable with the marks of a worker and of its ancestors, separated by slashes."""


def new_mark(environment: Mapping[str, str]) -> str:
    """Return the value of MARK for a worker that is started with an environment."""
    return f"{environment.get(MARK, '')}/{uuid.uuid4().hex}"


def end_descendants(pid: int, mark: str) -> None:
    """Kill the descendants of a worker, except for this process. Linux only.

    Without this, daemons of Ray outlive a killed driver by up to a minute.
    """
    start = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with suppress(ValueError, OSError):  # not a process, or it has ended
            other = int(name)
            belongs = os.getsid(other) == pid or _has_mark(other, start)
            if belongs and other != os.getpid():
                os.kill(other, signal.SIGKILL)


def _has_mark(pid: int, start: bytes) -> bool:
    values = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(value.startswith(start) for value in values)
