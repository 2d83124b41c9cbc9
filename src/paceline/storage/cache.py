"""Data sets on remote storage: copied into the cache once, and again if the remote files change.

TensorFlow's own packages do not read s3://, and random access to images over a network is slow, so
everything that reads data reads local files only. The folder of a copy is named by the listing of
the remote folder: a copy never changes, and an interrupted one continues. Several workers of one
machine share one copy.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from paceline.errors import UserError
from paceline.storage.files import explained, read_text, write_json
from paceline.storage.locations import cached
from paceline.storage.lock import FileLock, lock_file
from paceline.storage.progress_bar import late_bar
from paceline.storage.remote import (
    File,
    ReadOnlyFolder,
    Store,
    open_to_read,
    open_to_write,
    retry_storage,
)
from paceline.storage.transfer import Report, fetch_files, put_files

LISTING = ".listing.json"
"""In a copy: size and stamp of each remote file. It is written before the first file is copied."""
USERS = ".users"
"""In a copy: each process that uses it holds a shared lock on this file."""

_ready: dict[str, str] = {}
"""Folders that this process has copied or compared. They are not compared again."""


def up_to_date_copy(url: str, report: Report) -> str:
    """Return the folder of the copy of a data set on this machine."""
    if url not in _ready:
        _ready[url] = str(_bring(open_to_read(url), cached("data", url), report))
    return _ready[url]


def put_folder(folder: Path, url: str, last: str) -> None:
    """Upload all files of a local folder, and `last` after all others: it shows completeness."""
    store = open_to_write(url)
    there = retry_storage(store.files)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    names = [
        name
        for name, size in sizes.items()
        if not name.startswith(".") and name != last
        if name not in there or there[name].size != size
    ]
    with late_bar(f"uploading to {url}", len(names) + 1) as advance:
        put_files(store, folder, names, advance)
        put_files(store, folder, [last], advance)


def _bring(store: Store | ReadOnlyFolder, root: Path, report: Report) -> Path:
    """Return a complete copy of the data set as it is now, which this process keeps in use."""
    listed = retry_storage(store.files, report)
    files = {
        name: file for name, file in listed.items() if not name.rpartition("/")[2].startswith(".")
    }
    if not files:
        raise UserError(
            f"there is nothing in {store.url}; give the URL of the folder of a data set"
        )
    copy = root / hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
    with explained("write", copy):
        copy.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / ".lock", f"copying {store.url}")
    lock.acquire(wait_s=math.inf)  # one process copies, the others wait for it
    try:
        with explained("lock", copy / USERS):
            lock_file(copy / USERS, fcntl.LOCK_SH, math.inf)  # until this process ends
        for older in set(root.glob("*/")) - {copy}:
            _link_unchanged(older, copy, files)
        write_json(copy / LISTING, files)
        _copy(store, copy, files, report)
        for older in set(root.glob("*/")) - {copy}:
            _remove_unused(older)
    finally:
        lock.release()
    return copy


def _copy(
    store: Store | ReadOnlyFolder, copy: Path, files: Mapping[str, File], report: Report
) -> None:
    """Fetch the files that are missing in a copy."""
    missing = {
        name: file.size for name, file in files.items() if not _has_size(copy / name, file.size)
    }
    needed, free = sum(missing.values()), shutil.disk_usage(copy).free
    if needed > free:
        raise UserError(
            f"{store.url} needs {needed / 1e9:,.1f} GB of the cache in {copy.parent}, which has "
            f"{free / 1e9:,.1f} GB; set PACELINE_CACHE to a folder on a larger disk"
        )
    with late_bar(f"copying {store.url} into the cache", needed) as advance:
        targets = {name: copy / name for name in missing}
        gone = fetch_files(store, targets, needed, report, lambda name: advance(files[name].size))
    changed = [name for name in targets if not _has_size(copy / name, files[name].size)]
    for name in changed:
        (copy / name).unlink(missing_ok=True)
    if gone or changed:
        raise UserError(
            f"{store.url}/{(gone or changed)[0]} changed while it was copied; run the same command "
            "again"
        )


def _link_unchanged(older: Path, copy: Path, files: Mapping[str, File]) -> None:
    """Use the unchanged files of an older copy. Files of a copy are never written into."""
    with suppress(ValueError):
        known = json.loads(read_text(older / LISTING))
        for name, file in files.items():
            if known.get(name) == list(file) and not (copy / name).exists():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                with suppress(OSError):
                    os.link(older / name, copy / name)


def _remove_unused(older: Path) -> None:
    """Remove an older copy, unless another process uses it."""
    with explained("lock", older / USERS):
        handle = lock_file(older / USERS, fcntl.LOCK_EX, 0.0)
    if handle is not None:
        shutil.rmtree(older, ignore_errors=True)
        os.close(handle)


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
