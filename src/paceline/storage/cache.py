"""Data sets on remote storage: copied into the cache once, and again if the remote files change.

TensorFlow's own packages do not read s3://, and random access to images over a network is slow, so
everything that reads data reads local files only. The folder of a copy is named by the listing of
the remote folder: a copy never changes, and an interrupted one continues. All workers of a machine
share one copy. Older copies stay: a training may read them.
"""

import hashlib
import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline.errors import UserError
from paceline.storage.files import explained
from paceline.storage.locations import cached
from paceline.storage.lock import FileLock
from paceline.storage.progress_bar import late_bar
from paceline.storage.remote import (
    PARALLEL,
    File,
    Report,
    fetch_files,
    open_to_read,
    open_to_write,
    retry_storage,
)

_ready: dict[str, str] = {}
"""Folders that this process has copied or compared. They are not compared again."""


def up_to_date_copy(url: str, report: Report) -> str:
    """Return the folder of the copy of a data set on this machine."""
    if url not in _ready:
        _ready[url] = str(_bring(url, cached("data", url), report))
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

    def put(name: str) -> None:
        retry_storage(lambda: store.put(name, folder / name))

    with late_bar(f"uploading to {url}", len(names)) as advance:
        with ThreadPoolExecutor(PARALLEL) as pool:
            for _ in pool.map(put, names):
                advance(1)
        put(last)


def _bring(url: str, root: Path, report: Report) -> Path:
    """Return a complete copy of the data set as it is now."""
    store = open_to_read(url)
    listed = retry_storage(store.files, report)
    files = {
        name: file for name, file in listed.items() if not name.rpartition("/")[2].startswith(".")
    }
    if not files:
        raise UserError(f"there is nothing in {url}; give the URL of the folder of a data set")
    copy = root / hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
    lock = FileLock(root / ".lock", f"copying {url}")
    lock.acquire(wait_s=math.inf)  # one process copies, the others wait for it
    try:
        with explained("write", copy):
            copy.mkdir(exist_ok=True)
        missing = {name: file.size for name, file in files.items() if not _has(copy, name, file)}
        needed, free = sum(missing.values()), shutil.disk_usage(copy).free
        if needed > free:
            raise UserError(
                f"{url} needs {needed / 1e9:,.1f} GB of the cache, which has {free / 1e9:,.1f} GB; "
                f"remove older copies from {root}, or set PACELINE_CACHE to a folder on a larger "
                "disk"
            )
        fetch_files(store, {name: copy / name for name in missing}, needed, report)
    finally:
        lock.release()
    for name in missing:
        if not _has(copy, name, files[name]):
            raise UserError(f"{url}/{name} changed while it was copied; run the same command again")
    return copy


def _has(copy: Path, name: str, file: File) -> bool:
    return (copy / name).exists() and (copy / name).stat().st_size == file.size
