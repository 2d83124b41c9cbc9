"""A lock on a local file: who may write a folder of this machine. It ends with its process.

The lock of a folder on remote storage is `remote_lock.RemoteLock`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.run_folder.files import explained


class FileLock:
    """A file that one process at a time holds. Building one touches no disk.

    `use` is what its holder does, for the error: "training in FOLDER". `facts` are written into
    the file, beside the holder's process and host.
    """

    def __init__(self, path: Path, use: str, **facts: str) -> None:
        self.path = path
        self._use = use
        self._facts = facts
        self._handle: int | None = None

    def acquire(self, wait_s: float = 0.0) -> dict[str, Any]:
        """Keep other processes out until `release`; return what the previous holder wrote.

        Raises UserError if another process still holds the lock after `wait_s`.
        """
        with explained("lock", self.path):
            # A bare descriptor: the garbage collector does not close it, and started programs do
            # not inherit it.
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            if not _flock(handle, wait_s):
                os.close(handle)
                raise refusal(self.holder(), self._use)
            earlier = self.holder()
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(own_facts() | self._facts).encode(), 0)
        self._handle = handle
        return earlier

    def release(self) -> None:
        """Let other processes in. Does nothing if this object does not hold the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def holder(self) -> dict[str, Any]:
        """Return what the last holder wrote; empty if nothing can be read."""
        return parse_holder(self.path.read_bytes() if self.path.exists() else b"")

    def is_locked(self) -> bool:
        """Return whether a process holds the lock now."""
        if not self.path.exists():
            return False
        with explained("look at", self.path), open(self.path) as file:
            return not _flock(file.fileno(), 0.0)  # closing the file releases it again


def own_facts() -> dict[str, Any]:
    """Return what identifies this process."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


def parse_holder(content: bytes | None) -> dict[str, Any]:
    """Return the facts in a lock; empty if it is missing or damaged."""
    try:
        facts = json.loads(content or b"{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def name_of(holder: dict[str, Any]) -> str:
    """Return a holder's process and host in words."""
    return f"pid {holder.get('pid', 'unknown')} on host {holder.get('host', 'unknown')}"


def refusal(holder: dict[str, Any], use: str) -> UserError:
    """Return the error for a process that finds the lock taken."""
    return UserError(
        f"another process ({name_of(holder)}) is {use}; wait until it ends, or stop it"
    )


def _flock(handle: int, wait_s: float) -> bool:
    """Try again for `wait_s`: a process that was just killed may need a moment to let go."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
