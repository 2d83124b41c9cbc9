"""A run folder on remote storage: the local side, which all other code uses, and the remote side.

The process that trains locks the remote side, fetches it, and uploads what changes: metrics and
events before the checkpoint that they belong to, the result last. A pruned checkpoint is removed
after its successor is there. So training can resume from the remote side at any moment. The local
side is scratch: it is removed before a `pull` and after a clean end.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path

from paceline.errors import UserError
from paceline.messages import Send, Transfer, Warn
from paceline.run_folder.remote_lock import BEAT_EVERY_S, LOCK, RemoteLock
from paceline.run_folder.storage import File, Store
from paceline.run_folder.transfer import fetch_files, retrying

PUBLISH_EVERY_S = 30.0
BUSY_SHARE = 20
"""Uploads in the background take at most this fraction of the time."""
LOGS = "worker-"
"""How the names of log files start. They are open, and never fetched."""


class RemoteRun:
    """Both sides of a remote run folder. Building one touches neither disk nor network."""

    def __init__(self, store: Store, local: Path) -> None:
        self._store = store
        self._local = local
        self._lock = RemoteLock(store, f"training in {store.url}")
        self._uploaded: dict[str, tuple[int, int]] = {}  # size and time of the local file
        self._waiting: dict[str, int] = {}  # checkpoints that `pull` left
        self._seen: dict[str, File] = {}  # what `refresh` found
        self._own: set[str] = set()  # what `add` uploaded
        self._uploading = threading.Lock()
        self._ended = threading.Event()
        self._keeper: threading.Thread | None = None
        self._send: Send = lambda message: None

    @property
    def token(self) -> str:
        """Return what distinguishes this holder of the lock from others."""
        return self._lock.token

    def lock(self, earlier: str, send: Send) -> None:
        """Keep others out, on any host, until `unlock`; see `RemoteLock.acquire`."""
        self._send = send
        self._lock.acquire(earlier, self._warn)
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def unlock(self) -> None:
        """Let others in, and leave nothing but logs on this machine."""
        if self._keeper is None:
            return
        self._ended.set()
        self._keeper.join()
        self._keeper = None
        self._lock.release()
        _empty(self._local)

    def pull(self) -> None:
        """Make the local side equal to the remote one, but for checkpoints (`pull_checkpoints`)."""
        files = self._files_there()
        sizes = {name: file.size for name, file in files.items() if not name.startswith(LOGS)}
        if sizes and "config.json" not in files:
            raise UserError(
                f"{self._store.url} is not a run folder: it has {next(iter(sizes))} but no "
                "config.json; use a new or empty --run-dir"
            )
        _empty(self._local)
        self._uploaded = {}
        self._waiting = {name: size for name, size in sizes.items() if _is_checkpoint(name)}
        self._fetch({name: size for name, size in sizes.items() if name not in self._waiting})

    def pull_checkpoints(self) -> None:
        """Fetch all checkpoints: only here it can be seen which are whole, and which is best."""
        self._fetch(self._waiting)
        self._waiting = {}

    def refresh(self) -> None:
        """Fetch what others have uploaded since, and drop the checkpoints that they pruned."""
        files = self._files_there()
        self._fetch(
            {
                name: file.size
                for name, file in files.items()
                if self._seen.get(name) != file and name not in self._own
            }
        )
        self._seen |= files
        for name in _files(self._local):
            if _is_checkpoint(name) and name not in files:
                (self._local / name).unlink(missing_ok=True)

    def add(self, names: list[str]) -> None:
        """Upload files that nobody else writes. `refresh` does not fetch them again."""
        self._upload(names)
        self._own |= set(names)

    def publish(self) -> None:
        """Upload what has changed. After this, a run that resumes elsewhere finds it."""
        with self._uploading:
            retrying(self._lock.check, self._warn)
            names = _files(self._local)
            self._upload(sorted(names, key=_order))
            for name in [name for name in self._uploaded if _is_checkpoint(name)]:
                if name not in names:
                    retrying(partial(self._store.remove, name), self._warn)
                    del self._uploaded[name]

    def _files_there(self) -> dict[str, File]:
        return {name: file for name, file in self._store.files().items() if not _is_private(name)}

    def _fetch(self, sizes: dict[str, int]) -> None:
        fetch_files(self._store, sizes, self._local, self._report)
        self._uploaded |= {name: stat for name in sizes if (stat := _stat(self._local / name))}

    def _upload(self, names: list[str]) -> None:
        for name in names:
            path = self._local / name
            stat = _stat(path)
            if stat and self._uploaded.get(name) != stat:
                retrying(partial(self._store.put, name, path), self._warn)
                self._uploaded[name] = stat

    def _warn(self, text: str) -> None:
        self._send(Warn(text))

    def _report(self, text: str) -> None:
        self._send(Transfer(text))

    def _keep(self) -> None:
        """In a thread: renew the lock, and upload metrics, events and logs now and then.

        Its failures do not end the run: the next `publish` raises them.
        """
        due = time.monotonic() + PUBLISH_EVERY_S
        failed = False
        while not self._ended.wait(BEAT_EVERY_S) and not self._lock.is_lost():
            try:
                self._lock.beat()
                if self._uploading.locked():  # storage ends what takes too long: not a stall
                    self._report(f"uploading a checkpoint to {self._store.url}")
                if time.monotonic() > due:
                    began = time.monotonic()
                    with self._uploading:
                        self._upload([name for name in _files(self._local) if _order(name)[0] == 1])
                    took = time.monotonic() - began
                    due = time.monotonic() + max(PUBLISH_EVERY_S, BUSY_SHARE * took)
                failed = False
            except UserError as error:
                print(error, file=sys.stderr)  # into the log
                if not failed:
                    self._warn(str(error))
                failed = True


def _is_private(name: str) -> bool:
    return name == LOCK or any(part.startswith(".") for part in name.split("/"))


def _is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoints/")


def _files(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [name for name in names if not _is_private(name)]


def _order(name: str) -> tuple[int, str]:
    """Sort config.json first, result.json last, a checkpoint after the metrics that lead to it."""
    special = {"config.json": 0, "result.json": 3}
    return special.get(name, 2 if _is_checkpoint(name) else 1), name


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _empty(folder: Path) -> None:
    """Remove everything but the lock and the logs, which are open."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK and not path.name.startswith(LOGS):
            path.unlink(missing_ok=True)
