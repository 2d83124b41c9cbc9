"""How the files of a run are named on remote storage.

`lease.json` names the object of each file. An object's key has the number of the lease and of the
upload, `attempts/EPOCH/NUMBER/NAME`, and is never written twice. Event files, logs and what the
evaluator writes have their plain names: each has one writer, and TensorBoard reads them itself.
Folders of older versions have no lease, and plain names only.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UserError
from paceline.storage.backends import File, StorageFault, Store
from paceline.storage.conditional import is_atomic
from paceline.storage.lease import LEASE, OLD_LOCK, read_lease

ATTEMPTS = "attempts/"
PLAIN = re.compile(r"events/.|evaluations\.jsonl$|[^/]*\.log$")
KEPT = ("lock", ".commands")
"""Files of the local side that commands have open."""
LOG = re.compile(r"[^/]*\.log$")
"""Log files are open, and never fetched."""


class Entry(NamedTuple):
    """A file of a run on storage: the key of its object, its size and its stamp."""

    key: str
    file: File


def view(store: Store) -> dict[str, Entry]:
    """Return all files of a run by name, as they are now."""
    lease = read_lease(store)
    return view_of(store, lease.files if lease else None)


def view_of(
    store: Store, leased: Mapping[str, str] | None, listed: Mapping[str, File] | None = None
) -> dict[str, Entry]:
    """Return all files of a run whose lease names `leased`; None if it has no lease."""
    there = {
        name: file
        for name, file in (store.files() if listed is None else listed).items()
        if not _is_private(name)
    }
    if leased is None:
        if any(name.startswith(ATTEMPTS) for name in there):
            # HDFS cannot replace a file in one step: there it is away for a moment.
            raise (UserError if is_atomic(store) else StorageFault)(
                f"{store.url} has lost its {LEASE}, which names its files; restore it from a copy, "
                "or use another folder"
            )
        return {name: Entry(name, file) for name, file in there.items()}
    plain = {name: Entry(name, file) for name, file in there.items() if is_plain(name)}
    # A key that is not listed was replaced since the lease was read: fetching it finds that out.
    files = {name: Entry(key, there.get(key, File(0, ""))) for name, key in leased.items()}
    return plain | files


def left_behind(listed: Iterable[str], leased: Mapping[str, str], epoch: int) -> set[str]:
    """Return keys of earlier leases that this one does not name: no later lease will either."""
    keys = (key for key in listed if re.match(rf"{ATTEMPTS}\d+/\d+/.", key))
    return {key for key in keys if int(key.split("/")[1]) < epoch} - set(leased.values())


def new_key(name: str, epoch: int, number: int) -> str:
    """Return the key of the next upload of a file."""
    return f"{ATTEMPTS}{epoch}/{number}/{name}"


def last_event_number(names: Iterable[str]) -> int:
    """Return the number of the last event file of the chief; 0 if there is none."""
    found = (re.fullmatch(r"events/events\.out\.tfevents\.(\d+)", name) for name in names)
    return max((int(match[1]) for match in found if match), default=0)


def is_plain(name: str) -> bool:
    """Return whether a file has its plain name on storage, and is not in the lease."""
    return bool(PLAIN.match(name))


def is_log(name: str) -> bool:
    return bool(LOG.match(name))


def is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoints/")


def order(name: str) -> tuple[int, str]:
    """Sort config.json first, result.json last, a checkpoint after the metrics that lead to it."""
    special = {"config.json": 0, "result.json": 3}
    return special.get(name, 2 if is_checkpoint(name) else 1), name


def local_files(folder: Path) -> list[str]:
    """Return the names of the files on the local side."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [name for name in names if not _is_private(name)]


def stat(path: Path) -> tuple[int, int] | None:
    """Return size and time of a local file; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def empty(folder: Path) -> None:
    """Remove everything on the local side but the lock and the logs, which are open."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in KEPT and not is_log(path.name):
            path.unlink(missing_ok=True)


def _is_private(name: str) -> bool:
    return name in (OLD_LOCK, LEASE) or any(part.startswith(".") for part in name.split("/"))
