"""A lock on a local file: who may write a folder of this machine. It ends with its process.

The file also has the epoch number of its holder, which grows with each of them. On a network file
system a lock can be lost while its holder is cut off; the holder finds a higher number then, and
writes nothing more (`check`). The lease of a folder on remote storage is `lease.Holder`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.storage.files import explained
from paceline.storage.retry import growing_pauses, retry


class LeaseLost(UserError):
    """Another process has taken over: this one must not write any more."""


class FileLock:
    """A file that one process at a time holds. Building one touches no disk.

    `use` is what its holder does, for the error: "training in FOLDER". `facts` are written into
    the file, beside the holder's process, host and epoch.
    """

    def __init__(self, path: Path, use: str, **facts: str) -> None:
        self.path = path
        self.epoch = 0
        self._use = use
        self._facts = {"token": uuid.uuid4().hex} | facts
        self._handle: int | None = None

    def acquire(self, wait_s: float = 0.0) -> dict[str, Any]:
        """Keep other processes out until `release`; return what the previous holder wrote.

        The epoch is one above the previous holder's. Raises UserError if another
        process still holds the lock after `wait_s`.
        """
        with explained("lock", self.path):
            handle = lock_file(self.path, fcntl.LOCK_EX, wait_s)
            if handle is None:
                raise refusal(self.holder(), self._use)
            earlier = self.holder()
            self.epoch = epoch_of(earlier) + 1
            content = json.dumps(own_facts() | self._facts | {"epoch": self.epoch}).encode()
            # In one write, over the old content: a crash does not lose the number.
            os.pwrite(handle, content.ljust(os.fstat(handle).st_size), 0)
            os.fsync(handle)
        self._handle = handle
        return earlier

    def release(self) -> None:
        """Let other processes in. Does nothing if this object does not hold the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def check(self) -> None:
        """Raise LeaseLost if this object holds the lock, but another process has taken over.

        The file is opened anew, because a network file system then asks its server. If it cannot
        be read, that is tried again with longer pauses. Then nothing may be written either: it is
        a PassingFault, and LeaseLost if the file is gone, because its lock keeps nobody out.
        """
        if self._handle is None:
            return
        holder = self.patient_holder()
        if holder.get("token") == self._facts["token"] and epoch_of(holder) == self.epoch:
            return
        who = f"{name_of(holder)} has taken over" if holder else "somebody has removed"
        raise LeaseLost(
            f"{who} {self.path.parent}, in which this process (pid {os.getpid()}, lease "
            f"{self.epoch}) is {self._use.partition(' ')[0]}; it ends here and writes nothing more"
        )

    def holder(self) -> dict[str, Any]:
        """Return what the last holder wrote; empty if nothing can be read."""
        try:
            return self._read()
        except FileNotFoundError:
            return {}

    def patient_holder(self) -> dict[str, Any]:
        """Return what the last holder wrote; empty if there is nothing for some seconds."""
        with explained("read", self.path):
            try:
                return retry(self._read, passes=lambda error: isinstance(error, OSError))
            except FileNotFoundError:
                return {}

    def _read(self) -> dict[str, Any]:
        return parse_holder(self.path.read_bytes())

    def is_locked(self) -> bool:
        """Return whether a process holds the lock now."""
        # A shared lock, because NFS wants a file that is open for writing for an exclusive one,
        # and folders of others may be read only. Closing the file releases it again.
        with explained("look at", self.path):
            try:
                handle = os.open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return False
            try:
                return not _flock(handle, fcntl.LOCK_SH, 0.0)
            finally:
                os.close(handle)


def lock_file(path: Path, kind: int, wait_s: float) -> int | None:
    """Open and lock a file; return its descriptor, or None if it is locked after `wait_s`.

    Closing the descriptor, or the end of the process, unlocks it. Raises OSError.
    """
    deadline = time.monotonic() + wait_s
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # A bare descriptor: the garbage collector does not close it, and started programs do
            # not inherit it.
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # a command that failed has removed its new folder just now
            continue
        if not _flock(handle, kind, deadline - time.monotonic()):
            os.close(handle)
            return None
        if is_still_at(path, handle):
            return handle
        os.close(handle)  # its last holder has removed it: a lock on it keeps nobody out


def is_alone(handle: int) -> bool:
    """Return whether no other process shares a lock; if so, this one keeps all others out."""
    return _flock(handle, fcntl.LOCK_EX, 0.0)


def own_facts() -> dict[str, Any]:
    """Return what identifies this process."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


def parse_holder(content: bytes | None) -> dict[str, Any]:
    """Return the facts in a lock; empty if it is missing or damaged."""
    try:
        facts = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def name_of(holder: Mapping[str, Any]) -> str:
    """Return a holder's process and host in words."""
    return f"pid {holder.get('pid', 'unknown')} on host {holder.get('host', 'unknown')}"


def refusal(holder: Mapping[str, Any], use: str) -> UserError:
    """Return the error for a process that finds the lock taken."""
    return UserError(
        f"another process ({name_of(holder)}) is {use}; wait until it ends, or stop it"
    )


def epoch_of(holder: Mapping[str, Any]) -> int:
    """Return the number of a holder's lease; 0 if it has none."""
    epoch = holder.get("epoch", 0)
    return epoch if isinstance(epoch, int) else 0


def is_still_at(path: Path, handle: int) -> bool:
    """Return whether a descriptor is that of the file at `path` now."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _flock(handle: int, kind: int, wait_s: float) -> bool:
    """Try again for `wait_s`: a process that was just killed may need a moment to let go."""
    try:
        retry(lambda: fcntl.flock(handle, kind | fcntl.LOCK_NB), growing_pauses(0.1, 0.1, wait_s))
        return True
    except BlockingIOError:
        return False
