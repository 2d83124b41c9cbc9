"""A lock on a local file: who may write a folder of this machine. It ends with its process.

The file also contains its owner, with a number that grows with each of them. A network file system
can give the lock of a disconnected process away. That process then finds a higher number, and
writes nothing more (`check`). The lease of a folder on remote storage is `lease.Holder`.
"""

import fcntl
import json
import os
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

from paceline.errors import UserError
from paceline.storage.files import (
    explained,
    growing_pauses,
    is_file,
    read_run_file,
    retry,
    run_file,
)


class LeaseLost(UserError):
    """Another process has taken over: this one must not write any more."""


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock or a lease, or held it last. `epoch` grows with each."""

    pid: int = 0
    host: str = ""
    token: str = ""
    """Distinguishes this owner from all others."""
    epoch: int = 0

    def __str__(self) -> str:
        return f"pid {self.pid or 'unknown'} on host {self.host or 'unknown'}"


NOBODY = Owner()


def this_process(token: str, epoch: int) -> Owner:
    return Owner(os.getpid(), socket.gethostname(), token, epoch)


def parse_owner(facts: object) -> Owner:
    """Return the owner that JSON describes; raise ValueError if it does not describe one."""
    wanted = {field.name: type(field.default) for field in fields(Owner)}
    if not isinstance(facts, dict) or {name: type(facts[name]) for name in facts} != wanted:
        raise ValueError("it does not name its owner")
    return Owner(**facts)


def refusal(owner: Owner, use: str) -> UserError:
    """Return the error for a process that finds the lock taken."""
    return UserError(f"another process ({owner}) is {use}; wait until it ends, or stop it")


class FileLock:
    """A file that one process at a time holds, for a `use` such as "training in FOLDER"."""

    def __init__(self, path: Path, use: str, token: str = "") -> None:
        self.path = path
        self.epoch = 0
        self._use = use
        self._token = token or uuid.uuid4().hex
        self._handle: int | None = None

    def acquire(self, wait_s: float = 0.0) -> Owner:
        """Keep other processes out until `release`; return the previous owner. Raises UserError if
        another process still holds the lock after `wait_s`."""
        with explained("lock", self.path):
            handle = _lock_file(self.path, wait_s)
            earlier = self.owner()
            if handle is None:
                raise refusal(earlier, self._use)
            self.epoch = earlier.epoch + 1
            content = json.dumps(asdict(this_process(self._token, self.epoch))).encode()
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

        If the lock cannot be read for some seconds, it raises PassingFault.
        """
        owner = self.owner() if self._handle is not None else None
        if not owner or (owner.token, owner.epoch) == (self._token, self.epoch):
            return
        # The lock on a file that is gone keeps nobody out.
        who = "somebody has removed" if owner == NOBODY else f"{owner} has taken over"
        raise LeaseLost(
            f"{who} {self.path.parent}, in which this process (pid {os.getpid()}, lease "
            f"{self.epoch}) is {self._use.partition(' ')[0]}; it ends here and writes nothing more"
        )

    def owner(self) -> Owner:
        """Return the last owner; nobody if there is no file, or a damaged one, for some seconds.

        The file is opened again each time, because a network file system then asks its server.
        """
        with explained("read", self.path):
            try:
                read = partial(read_run_file, self.path)
                content = retry(read, passes=lambda error: isinstance(error, OSError))
                return parse_owner(json.loads(content))
            except (FileNotFoundError, ValueError, RecursionError):
                return NOBODY

    def is_locked(self) -> bool:
        """Return whether a process holds the lock now."""
        # A shared lock, because NFS wants a file that is open for writing for an exclusive one,
        # and folders of others may be read only. Closing the file releases it again.
        if not is_file(self.path):
            return False
        with explained("look at", self.path), open(self.path, "rb", opener=run_file) as file:
            return not _flock(file.fileno(), fcntl.LOCK_SH, 0.0)


def _lock_file(path: Path, wait_s: float) -> int | None:
    """Open and lock a file; return its descriptor, or None if it is locked after `wait_s`.

    Closing the descriptor, or the end of the process, unlocks it. Raises OSError.
    """
    deadline = time.monotonic() + wait_s
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # A bare descriptor: the garbage collector does not close it, and started programs do
            # not inherit it.
            handle = run_file(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except FileNotFoundError:  # a command that failed has removed its new folder just now
            continue
        locked = _flock(handle, fcntl.LOCK_EX, deadline - time.monotonic())
        with suppress(FileNotFoundError):
            if locked and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)  # if the file was deleted meanwhile, locking it protects nothing
        if not locked:
            return None


def _flock(handle: int, kind: int, wait_s: float) -> bool:
    """Try again for `wait_s`: a process that was just killed may need a moment to let go."""
    try:
        retry(lambda: fcntl.flock(handle, kind | fcntl.LOCK_NB), growing_pauses(0.1, 0.1, wait_s))
        return True
    except BlockingIOError:
        return False
