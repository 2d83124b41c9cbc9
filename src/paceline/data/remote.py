"""Data sets on remote storage: copied into the cache once, and anew where the remote files changed, by size and stamp.

TensorFlow's own packages read no s3://, and random access to pictures over a network would be slow wherever they do; so all that
reads data knows local files only. A copy that was cut off goes on; several workers of one machine share it. No TensorFlow.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.data.tools.progress_bar import late_bar
from paceline.errors import UserError
from paceline.messages import Send, Transfer
from paceline.run_folder.folder import explained, write_json
from paceline.run_folder.storage import File, Store, Tally, cached, is_remote

NOTES = ".paceline-copy.json"
"""In the copy: size and stamp of the remote file that each of its files was copied from."""
PARALLEL = 16
NOTE_EVERY_S = 5.0

_ready: dict[str, str] = {}
"""What this process has brought already; it is not compared again."""


def bring_data(folder: str, send: Send) -> None:
    """In a worker, before anything is built: whoever watches it sees that it gets on."""
    local_folder(folder, lambda text: send(Transfer(text)))


def local_folder(folder: str, tell: Callable[[str], None] = lambda text: None) -> str:
    """`folder` itself, or where its copy lies on this machine."""
    if not is_remote(folder):
        return folder
    if folder not in _ready:
        _ready[folder] = str(_bring(Store(folder), cached("data", folder), tell))
    return _ready[folder]


def put_folder(folder: Path, url: str, last: str) -> None:
    """Put all files of a local folder, `last` as the last one: who finds it finds everything."""
    store = Store(url)
    there, names = (
        store.files(),
        sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")),
    )
    names = [
        name
        for name in names
        if name != last and getattr(there.get(name), "size", -1) != (folder / name).stat().st_size
    ]
    with (
        late_bar(f"putting into {url}", len(names) + 1) as advance,
        ThreadPoolExecutor(PARALLEL) as pool,
    ):
        for _ in pool.map(lambda name: store.put(name, folder / name), names):
            advance(1)
        store.put(last, folder / last)
        advance(1)


def _bring(store: Store, target: Path, tell: Callable[[str], None]) -> Path:
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
    with _alone(target):
        known = _read_notes(target)
        known = {
            name: file
            for name, file in known.items()
            if files.get(name) == file and _size(target / name) == file.size
        }
        for path in target.rglob("*"):  # pictures that were removed are no examples any more
            if (
                path.is_file()
                and not path.name.startswith(".")
                and path.relative_to(target).as_posix() not in known
            ):
                path.unlink()
        missing = [name for name in files if name not in known]
        needed, free = sum(files[name].size for name in missing), shutil.disk_usage(target).free
        if needed > free:
            raise UserError(
                f"{store.url} needs {needed / 1e9:,.1f} GB of the cache in {target.parent}, which has {free / 1e9:,.1f}; "
                "set PACELINE_CACHE to a folder on a larger disk"
            )
        if missing:
            _copy(store, target, files, missing, known, tell)
    return target


def _copy(
    store: Store,
    target: Path,
    files: dict[str, File],
    missing: list[str],
    known: dict[str, File],
    tell: Callable[[str], None],
) -> None:
    what, total, noted = (
        f"copying {store.url} into the cache",
        sum(files[name].size for name in missing),
        time.monotonic(),
    )
    tally, failure = Tally(what, total, tell), None
    with late_bar(what, total) as advance, ThreadPoolExecutor(PARALLEL) as pool:
        jobs = {pool.submit(store.get, name, target / name, tally): name for name in missing}
        try:
            for job in as_completed(jobs):
                name = jobs[job]
                if job.cancelled():
                    continue
                if job.exception() or not job.result() or _size(target / name) != files[name].size:
                    changed = UserError(
                        f"{store.url}/{name} changed while it was copied; run the same command again"
                    )
                    failure = failure or job.exception() or changed
                    _cancel(jobs)  # what others are fetching right now is kept
                    continue
                known[name] = files[name]
                advance(files[name].size)
                if time.monotonic() - noted > NOTE_EVERY_S:
                    noted = time.monotonic()
                    write_json(target / NOTES, known)
        finally:
            _cancel(jobs)
            write_json(target / NOTES, known)
    if failure:
        raise failure


def _cancel(jobs: Iterable[Future[bool]]) -> None:
    for job in jobs:
        job.cancel()


def _read_notes(target: Path) -> dict[str, File]:
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {
            name: File(*file) for name, file in json.loads((target / NOTES).read_text()).items()
        }
    return {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process copies, the others wait for it; the lock dies with its holder."""
    with explained("lock", target):
        handle = os.open(target / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
