"""Data sets on remote storage: copied into the cache once, and again if the remote files change.

TensorFlow's own packages do not read s3://, and random access to images over a network is slow, so
everything that reads data reads local files only. An interrupted copy continues where it ended.
Several workers of one machine share one copy. No TensorFlow.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paceline.data.tools.progress_bar import late_bar
from paceline.errors import UserError
from paceline.messages import Send, Transfer
from paceline.run_folder.files import explained, write_json
from paceline.run_folder.lock import FileLock
from paceline.run_folder.storage import File, Store, cached, is_remote
from paceline.run_folder.transfer import fetch_files, put_files

NOTES = ".paceline-copy.json"
"""In the copy: size and stamp of the remote file that each of its files was copied from."""
NOTE_EVERY_S = 5.0

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
    there = store.files()
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
    files = {
        name: file
        for name, file in store.files().items()
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
        known = _known(target, files)
        for path in target.rglob("*"):  # images that were removed are not examples any more
            name = path.relative_to(target).as_posix()
            if path.is_file() and not path.name.startswith(".") and name not in known:
                path.unlink()
        missing = {name: file for name, file in files.items() if name not in known}
        _check_space(store, target, sum(file.size for file in missing.values()))
        if missing:
            _copy(store, target, missing, known, report)
    finally:
        lock.release()
    return target


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
