"""The session of a worker: the processes that it started, and those that they started."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def end_session(leader: int) -> None:
    """Kill what is left of a session, except for the process that leads it. Linux only.

    Daemons of Ray outlive a driver that was killed by up to a minute.
    """
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with suppress(ValueError, ProcessLookupError, PermissionError):
            if int(name) != leader and os.getsid(int(name)) == leader:
                os.kill(int(name), signal.SIGKILL)
