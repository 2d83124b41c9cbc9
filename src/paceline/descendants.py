"""The descendants of a worker: the processes that it started, and all that they started.

A worker leads a session and has a mark in its environment. Its descendants inherit both, even if
their parents have ended. Some start their own session, and daemons of Ray overwrite their
environment with their names.
"""

from __future__ import annotations

import os
import signal
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
    """Kill the descendants of a worker, except for this process.

    Without this, daemons of Ray outlive a killed driver by up to a minute.
    """
    marked = f"\0{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        with suppress(ValueError, OSError):  # not a process, or it has ended
            other = int(name)
            variables = b"\0" + Path(f"/proc/{other}/environ").read_bytes()
            if other != os.getpid() and (os.getsid(other) == pid or marked in variables):
                os.kill(other, signal.SIGKILL)
