"""The simulated disk and object storage. Both watch that a run has one writer at a time.

Files are real ones in memory, behind the calls of `storage.files`, `storage.lock` and
`run_folder.records`: each takes a random time, in which the process can be killed or frozen.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from paceline.storage.files import replacing_path, run_file
from paceline.storage.lease import LEASE, LOCK_TIMEOUT_S
from paceline.storage.remote import File, StorageFault

from .world import Process, Violation, World, me, world

DISK_S, STORE_S = 0.3, 0.5
"""The longest time of an operation."""


class Disk:
    """Who may write a run folder, the locks that processes hold, and faults of the disk."""

    def __init__(self, run: Path | None) -> None:
        self._run = run
        self.fault = 0
        """The number of the error of every write now."""
        self.holder: Process | None = None
        self.handles: dict[int, Process] = {}
        self.writing: Process | None = None

    def write(self, path: Path) -> None:
        """Check that the current process may begin to write this file now; it takes a moment."""
        process = me()
        if self._run and path.is_relative_to(self._run) and path.name != "lock":
            holder = self.holder
            if holder and holder.command != process.command:
                raise Violation(
                    f"{process.name} writes {path.name}, but {holder.name} has taken over"
                )
            process.world.useful(process)
        if self.fault:
            raise OSError(self.fault, os.strerror(self.fault), str(path))

    def close(self, process: Process) -> None:
        """Release the locks of a process that has ended."""
        for handle in [each for each, owner in self.handles.items() if owner is process]:
            del self.handles[handle]
            os.close(handle)


class RealOs:
    """The module `os`, except for what a subclass changes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class FilesOs(RealOs):
    """`os` in `storage.files`: writing takes time and may fail; files have simulated times."""

    def __init__(self, disk: Callable[[], Disk]) -> None:
        self._disk = disk

    def fsync(self, handle: int) -> None:
        self._disk().writing = me()
        world().pause(DISK_S)
        self._disk().writing = None
        if self._disk().fault:
            raise OSError(self._disk().fault, os.strerror(self._disk().fault))

    def replace(self, source: str | Path, target: str | Path) -> None:
        os.replace(source, target)
        stamp(Path(target))


class FilesTempfile:
    """`tempfile` in `storage.files`."""

    TemporaryDirectory = tempfile.TemporaryDirectory

    def __init__(self, disk: Callable[[], Disk]) -> None:
        self._disk = disk

    def mkstemp(self, dir: Path, prefix: str, suffix: str) -> tuple[int, str]:
        self._disk().write(Path(dir) / prefix.strip("."))
        return tempfile.mkstemp(dir=dir, prefix=prefix, suffix=suffix)


class LockOs(RealOs):
    """`os` in `storage.lock`: the locks of a process end with it."""

    def __init__(self, disk: Callable[[], Disk]) -> None:
        self._disk = disk

    def getpid(self) -> int:
        return me().pid

    def run_file(self, path: str, flags: int) -> int:
        """As `storage.files.run_file`; only the lock keeps what it opens to write."""
        handle, disk, process = run_file(path, flags), self._disk(), me()
        if flags & os.O_CREAT:
            disk.handles[handle] = process
            process.at_end.append(lambda: disk.close(process))
        return handle

    def close(self, handle: int) -> None:
        if (
            self._disk().handles.get(handle) is me()
        ):  # else lost, and another process has the number
            del self._disk().handles[handle]
            os.close(handle)

    def pwrite(self, handle: int, content: bytes, offset: int) -> int:
        self._disk().holder = me()
        return os.pwrite(handle, content, offset)

    def fsync(self, handle: int) -> None:
        world().pause(DISK_S)


class Appended:
    """A file that is opened to append. A line is written in two pieces, as a kill may cut it."""

    def __init__(self, path: Path, mode: str, **settings: Any) -> None:
        self._path = path
        self._file: IO[bytes] = open(path, mode, **settings)  # noqa: SIM115

    def __enter__(self) -> Appended:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        stamp(self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, line: bytes) -> None:
        middle = world().chance.randint(0, len(line))
        self._file.write(line[:middle])
        self._file.flush()
        if world().chance.random() < 0.3:
            world().disk.writing = me()
            world().pause(DISK_S)
            world().disk.writing = None
        self._file.write(line[middle:])
        self._file.flush()


def stamp(path: Path) -> None:
    """Give a file the time of the simulated clock: real ones differ from run to run."""
    if path.exists():
        now = int(world().now * 1e9) + next(world().stamps)
        os.utime(path, ns=(now, now))


class Bucket:
    """All objects of a simulated storage, and who changed the lease when."""

    def __init__(self, world: World) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.trouble: dict[str, str] = {}
        """Host -> what is wrong with its requests now: refuse, lose or delay."""
        self.lease: dict[str, Any] = {"owner": {"epoch": 0, "token": ""}, "held": False}
        self.changed_at = 0.0
        self.trouble_at = -1e9
        """When requests failed last."""
        self.owners: dict[str, Process] = {}
        self._world = world
        self._versions = 0

    def put(self, name: str, content: bytes) -> int:
        self._versions += 1
        self.objects[name] = content, self._versions
        return self._versions

    def is_held_by(self, process: Process) -> bool:
        """Return whether a process has the lease, and nothing kept it from saying so."""
        now, lease = self._world.now, self.lease
        disturbed_at = now if process.frozen else self.trouble_at
        quiet_s = now - self.changed_at
        if now - max(process.frozen_at, disturbed_at) > 2 * LOCK_TIMEOUT_S:
            quiet_s = 0.0
        is_its = lease["held"] and self.owners.get(lease["owner"]["token"]) is process
        return is_its and process.alive and quiet_s < 0.9 * LOCK_TIMEOUT_S

    def swap(self, content: bytes, version: int | None, process: Process) -> int | None:
        """Replace the lease if it has this version; check that the process may."""
        there = self.objects.get(LEASE)
        if (there[1] if there else None) != version:
            return None
        new, old, now = json.loads(content), self.lease, self._world.now
        before = self.owners.get(old["owner"]["token"])
        if new["owner"]["token"] != old["owner"]["token"] and before and self.is_held_by(before):
            raise Violation(f"{process.name} takes the lease of {before.name}, which is alive")
        if new["owner"]["epoch"] < old["owner"]["epoch"]:
            raise Violation(f"{process.name} writes an older lease: {new} after {old}")
        self.lease, self.changed_at = new, now
        self.owners[new["owner"]["token"]] = process
        return self.put(LEASE, content)


class SimulatedStore:
    """As `storage.remote.Store`."""

    def __init__(self, url: str, request_s: float = 3600.0) -> None:
        self.url = url.rstrip("/")
        self._request_s = min(request_s, 60.0)

    def _request(self, doing: str, action: Callable[[], Any]) -> Any:
        """Send a request; if there is trouble, it or its answer may be lost or late."""
        process, bucket, here = me(), world().bucket, world()
        here.pause(STORE_S)
        trouble = bucket.trouble.get(process.host, "")
        fault = StorageFault(f"cannot {doing} {self.url}: it does not answer")
        if trouble:
            bucket.trouble_at = here.now + self._request_s
        if trouble == "refuse":
            raise fault
        if trouble == "delay" and here.chance.random() < 0.5:
            here.at(here.chance.uniform(0.0, 2 * self._request_s), lambda: _later(action))
            here.sleep(self._request_s)
            raise fault
        result = action()
        process.world.useful(process)
        here.pause(STORE_S)
        if bucket.trouble.get(process.host) == "lose" and here.chance.random() < 0.5:
            raise fault
        return result

    def files(self) -> dict[str, File]:
        def list_all() -> dict[str, File]:
            found = sorted(world().bucket.objects.items())
            return {name: File(len(content), str(version)) for name, (content, version) in found}

        return self._request("list", list_all)

    def read_versioned(self, name: str) -> tuple[bytes, int] | None:
        return self._request("read", lambda: world().bucket.objects.get(name))

    def get(self, name: str, target: Path, advance: Callable[[int], None]) -> bool:
        found = self.read_versioned(name)
        if found:
            with replacing_path(target) as new:
                new.write_bytes(found[0])
            stamp(target)
        return bool(found)

    def put(self, name: str, content: Path | bytes) -> None:
        data = content if isinstance(content, bytes) else content.read_bytes()
        self._request("put", lambda: world().bucket.put(name, data))

    def swap(self, name: str, content: bytes, version: int | None) -> int | None:
        process = me()
        return self._request("put", lambda: world().bucket.swap(content, version, process))

    def remove(self, name: str) -> None:
        self._request("remove", lambda: world().bucket.objects.pop(name, None))


def _later(action: Callable[[], Any]) -> None:
    """A request that arrives after its sender has given up."""
    action()


FULL, BROKEN = errno.ENOSPC, errno.EIO
