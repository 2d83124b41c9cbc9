"""Data sets on remote storage: copied into the cache once, and again if the remote files change.

TensorFlow's own packages do not read s3://, and random access to images over a network is slow, so
everything that reads data reads local files only. An interrupted copy continues where it ended.
Several workers of one machine share one copy. A copy that a process uses is never changed: if the
remote files change meanwhile, the next command makes a second copy. No TensorFlow.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paceline.errors import UserError
from paceline.messages import Send, Transfer
from paceline.storage.backends import File, Store, cached, is_remote
from paceline.storage.files import explained, write_json
from paceline.storage.lock import FileLock, lock_file
from paceline.storage.progress_bar import late_bar
from paceline.storage.transfer import fetch_files, put_files, retry_storage

NOTES = ".paceline-copy.json"
"""In the copy: size and stamp of the remote file that each of its files was copied from."""
NOTE_EVERY_S = 5.0
USERS = ".users"
"""In the copy: a file on which each process that uses it has a shared lock."""

_ready: dict[str, str] = {}
"""Folders that this process has copied or compared. They are not compared again."""


def bring_data(folder: str, send: Send) -> None:
    """Copy a data set in a worker, before anything is built; report the progress to its parent."""
    local_folder(folder, lambda text: send(Transfer(text)))


def local_folder(folder: str, report: Callable[[str], None] = lambda text: None) -> str:
    """Return `folder` itself, or the folder of its up-to-date copy on this machine."""
    if not is_remote(folder):
        return folder
    if folder not in _ready:
        _ready[folder] = str(_bring(Store(folder), cached("data", folder), report))
    return _ready[folder]


def put_folder(folder: Path, url: str, last: str) -> None:
    """Upload all files of a local folder, `last` as the last one: where it is, all others are."""
    store = Store(url)
    there = retry_storage(store.files, lambda text: None)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    names = [
        name
        for name, size in sizes.items()
        if not name.startswith(".")
        and name != last
        and getattr(there.get(name), "size", -1) != size
    ]
    with late_bar(f"uploading to {url}", len(names) + 1) as advance:
        put_files(store, folder, names, advance)
        put_files(store, folder, [last], advance)


def _bring(store: Store, target: Path, report: Callable[[str], None]) -> Path:
    """Return a folder with the data set as it is now, which nobody changes while it is used."""
    files = {
        name: file
        for name, file in retry_storage(store.files, report).items()
        if not name.rpartition("/")[2].startswith(".")
    }
    if not files:
        raise UserError(
            f"there is nothing in {store.url}; give the URL of the folder of a data set"
        )
    with explained("write", target):
        target.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target / ".lock", f"copying {store.url}")
    lock.acquire(wait_s=math.inf)  # one process copies, the others wait for it
    try:
        place = _choose(target, files)
        _remove_unused(target, place)
        _refresh(store, place, files, report)
        with explained("lock", place / USERS):
            # until this process ends
            lock_file(place / USERS, fcntl.LOCK_SH, 0.0)
    finally:
        lock.release()
    return place


def _choose(target: Path, files: dict[str, File]) -> Path:
    """Return a copy that is up to date, or one that nobody uses and that can be changed.

    If another process still uses an older state of the data, this is a second copy. It shares the
    files that have not changed.
    """
    for number in itertools.count(1):
        place = target if number == 1 else target.with_name(f"{target.name}.{number}")
        new = not (place / USERS).exists()
        with explained("write", place):
            place.mkdir(exist_ok=True)
            if len(_known(place, files)) == len(files) and not _others(place, files):
                return place
            handle = lock_file(place / USERS, fcntl.LOCK_EX, 0.0)
        if handle is not None:
            os.close(handle)  # whoever wants to use it waits for the lock that we hold
            if new and number > 1:
                _link(target, place, files)
            return place
    raise AssertionError("unreachable")


def _remove_unused(target: Path, chosen: Path) -> None:
    """Remove second copies that nobody uses any more."""
    for place in target.parent.glob(f"{target.name}.*"):
        with explained("lock", place / USERS):
            handle = None if place == chosen else lock_file(place / USERS, fcntl.LOCK_EX, 0.0)
        if handle is not None:
            shutil.rmtree(place, ignore_errors=True)
            os.close(handle)


def _link(old: Path, new: Path, files: dict[str, File]) -> None:
    """Put what has not changed into a second copy. Files are replaced, never written into."""
    known = _known(old, files)
    for name in list(known):
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(old / name, new / name)
        except OSError:
            del known[name]
    write_json(new / NOTES, known)


def _refresh(
    store: Store, place: Path, files: dict[str, File], report: Callable[[str], None]
) -> None:
    """Fetch what is missing in a copy or has changed; remove what is not in the data set."""
    known = _known(place, files)
    for path in _others(place, known):  # images that were removed are not examples any more
        path.unlink()
    missing = {name: file for name, file in files.items() if name not in known}
    _check_space(store, place, sum(file.size for file in missing.values()))
    if missing:
        _copy(store, place, missing, known, report)


def _others(place: Path, files: dict[str, File]) -> list[Path]:
    """Return the files of a copy that are not among `files`, but for its own notes and locks."""
    return [
        path
        for path in place.rglob("*")
        if path.is_file() and not path.name.startswith(".")
        if path.relative_to(place).as_posix() not in files
    ]


def _check_space(store: Store, target: Path, needed: int) -> None:
    free = shutil.disk_usage(target).free
    if needed > free:
        raise UserError(
            f"{store.url} needs {needed / 1e9:,.1f} GB of the cache in {target.parent}, which has "
            f"{free / 1e9:,.1f} GB; set PACELINE_CACHE to a folder on a larger disk"
        )


def _copy(
    store: Store,
    target: Path,
    missing: dict[str, File],
    known: dict[str, File],
    report: Callable[[str], None],
) -> None:
    sizes = {name: file.size for name, file in missing.items()}
    noted = time.monotonic()

    def note(name: str, found: bool) -> None:
        nonlocal noted
        if not found or _size(target / name) != sizes[name]:
            raise UserError(
                f"{store.url}/{name} changed while it was copied; run the same command again"
            )
        known[name] = missing[name]
        advance(sizes[name])
        if time.monotonic() - noted > NOTE_EVERY_S:
            noted = time.monotonic()
            write_json(target / NOTES, known)

    with late_bar(f"copying {store.url} into the cache", sum(sizes.values())) as advance:
        try:
            fetch_files(store, sizes, target, report, note)
        finally:
            write_json(target / NOTES, known)


def _known(target: Path, files: dict[str, File]) -> dict[str, File]:
    """Return the files of the copy that are whole and as they are on storage now."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        notes = json.loads((target / NOTES).read_text())
        return {
            name: file
            for name, file in files.items()
            if File(*notes.get(name, (-1, ""))) == file and _size(target / name) == file.size
        }
    return {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
