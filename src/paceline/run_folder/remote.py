"""A run folder on remote storage: a local side, which everything else works on, and the remote one, which is the truth.

Whoever trains locks the remote side, pulls it, and publishes what changed: metrics and events before the checkpoint that they
belong to, the result last, and what was pruned is deleted when its successor is there. So the remote side can be resumed from
at any moment. The local side is scratch: it is thrown away before a pull and after a clean end.

The lock is an object that its holder writes again and again. Nobody compares clocks: who finds a lock watches whether it changes.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.messages import Send, Transfer, Warn
from paceline.run_folder.storage import File, StorageError, Store, Tally

LOCK = "lock"
LOCK_TIMEOUT_S = float(os.environ.get("PACELINE_LOCK_TIMEOUT_S") or 60.0)
"""A lock that does not change for so long is taken over; its holder writes it six times as often."""
PUBLISH_EVERY_S = 30.0
BUSY_SHARE = 20
"""Metrics and events go up in the background, for at most this fraction of the time."""
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before an upload is tried again, where storage itself has given up after a few tries."""
PARALLEL = 8


class Mirror:
    """The remote side of a run folder. Building it touches neither disk nor network."""

    def __init__(self, url: str, local: Path) -> None:
        self._store, self._local = Store(url), local
        self._there: dict[
            str, tuple[int, int]
        ] = {}  # what the remote side has: size and time of the local file
        self._waiting: dict[str, int] = {}
        self._seen: dict[str, File] = {}  # what `refresh` found
        self._beats, self._lost = 0, ""
        self._busy, self._ended = threading.Lock(), threading.Event()
        self._send: Send = lambda message: None
        self._keeper: threading.Thread | None = None
        self.token = uuid.uuid4().hex

    def lock(self, earlier: str, send: Send) -> None:
        """Keep others out, on any host, until `unlock`. `earlier` is the token of the last holder on this machine, which is known to
        be gone: if the lock is still its own, there is nothing to wait for."""
        self._send = send
        if not self._store.create(LOCK, self._holder()):
            self._wait(earlier)
            self._store.put(LOCK, self._holder())
            time.sleep(1.0)  # of two who take over at once, the later one holds it
            if _token(self._store.read(LOCK)) != self.token:
                raise self._refused(self._store.read(LOCK))
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def unlock(self) -> None:
        """Let others in, and leave nothing but logs on this machine."""
        if self._keeper is None:
            return
        self._ended.set()
        self._keeper.join()
        self._keeper = None
        try:
            if _token(self._store.read(LOCK)) == self.token:
                self._store.remove(LOCK)
        except StorageError as error:
            print(error, file=sys.stderr)  # into the log; a lock that is left behind is taken over
        _empty(self._local)

    def pull(self) -> None:
        """Make the local side what the remote one is; checkpoints are left to `pull_checkpoints`."""
        files = {name: file for name, file in self._store.files().items() if not _is_private(name)}
        strangers = [name for name in files if not name.startswith("worker-")]
        if strangers and "config.json" not in files:
            raise UserError(
                f"{self._store.url} is not a run folder: it has {strangers[0]} but no config.json; use a new or empty --run-dir"
            )
        _empty(self._local)
        self._there, self._waiting = (
            {},
            {name: files[name].size for name in strangers if name.startswith("checkpoints/")},
        )
        self._fetch({name: files[name].size for name in strangers if name not in self._waiting})

    def pull_checkpoints(self) -> None:
        """All of them: which one is whole, and which the best, is known only when they are here."""
        self._fetch(self._waiting)
        self._waiting = {}

    def refresh(self) -> None:
        """For who looks on while others train: fetch what is new over there, and drop the checkpoints that were pruned."""
        files = {name: file for name, file in self._store.files().items() if not _is_private(name)}
        self._fetch(
            {name: file.size for name, file in files.items() if self._seen.get(name) != file}
        )
        self._seen |= files
        for name in _files(self._local):
            if name.startswith("checkpoints/") and name not in files:
                (self._local / name).unlink(missing_ok=True)

    def add(self, names: list[str]) -> None:
        """Bring up files that nobody else writes. They are not fetched again."""
        self._upload(names)
        self._seen |= {name: file for name, file in self._store.files().items() if name in names}

    def publish(self) -> None:
        """Bring up what changed. When it returns, a run that resumes elsewhere finds it; else it raises."""
        with self._busy:
            self._patiently(self._check_lock)
            names = _files(self._local)
            self._upload(sorted(names, key=_order))
            for name in [
                name
                for name in self._there
                if name.startswith("checkpoints/") and name not in names
            ]:
                self._patiently(self._store.remove, name)
                del self._there[name]

    def _fetch(self, sizes: dict[str, int]) -> None:
        tally = Tally(f"fetching {self._store.url}", sum(sizes.values()), self._tell)
        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(lambda name: self._store.get(name, self._local / name, tally), sizes))
        self._there |= {name: stat for name in sizes if (stat := _stat(self._local / name))}

    def _tell(self, text: str) -> None:
        self._send(Transfer(text))

    def _upload(self, names: list[str]) -> None:
        for name in names:
            stat = _stat(self._local / name)
            if stat and self._there.get(name) != stat:
                self._patiently(self._store.put, name, self._local / name)
                self._there[name] = stat

    def _patiently(self, action: Callable[..., None], *arguments: Any) -> None:
        """A training of days does not end because storage is away for half a minute."""
        for wait_s in (*WAITS_S, None):
            try:
                action(*arguments)
                return
            except StorageError as error:
                if not error.passing or wait_s is None:
                    raise
                self._send(Warn(f"{error}; trying again in {wait_s:.0f} s"))
                time.sleep(wait_s)

    def _keep(self) -> None:
        """In a thread: say that this run lives, and bring up metrics, events and logs now and then. Its failures end nothing: the next
        checkpoint tells."""
        due, failed = time.monotonic() + PUBLISH_EVERY_S, False
        while not self._ended.wait(LOCK_TIMEOUT_S / 6) and not self._lost:
            try:
                self._beat()
                if (
                    self._busy.locked()
                ):  # storage ends what takes too long; till then it is no standstill
                    self._tell(f"putting a checkpoint into {self._store.url}")
                if time.monotonic() > due:
                    began = time.monotonic()
                    with self._busy:
                        self._upload(
                            [name for name in _files(self._local) if _order(name) == (1, name)]
                        )
                    due = time.monotonic() + max(
                        PUBLISH_EVERY_S, BUSY_SHARE * (time.monotonic() - began)
                    )
                failed = False
            except UserError as error:
                print(error, file=sys.stderr)  # into the log
                if not failed:
                    self._send(Warn(str(error)))
                failed = True

    def _beat(self) -> None:
        self._check_lock()
        self._beats += 1
        self._store.put(LOCK, self._holder())

    def _check_lock(self) -> None:
        """Whoever was silent for too long may find that another has taken over: then nothing more may be written."""
        content = self._store.read(LOCK) if not self._lost else None
        if content is not None and _token(content) != self.token:
            self._lost = _name(content)
        if self._lost:
            raise UserError(
                f"{self._lost} has taken over {self._store.url}, as this run was not heard of for {LOCK_TIMEOUT_S:.0f} s; "
                "it ends here, and nothing is lost up to its last checkpoint"
            )

    def _wait(self, earlier: str) -> None:
        """Until the lock is known to be left behind: it is our own, or it did not change."""
        first = self._store.read(LOCK)
        if first is None or (earlier and _token(first) == earlier):
            return
        text = f"{self._store.url} is locked by {_name(first)}; it is taken over if that shows no sign of life in {LOCK_TIMEOUT_S:.0f} s"
        self._send(Warn(text))
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(min(1.0, LOCK_TIMEOUT_S / 12))
            content = self._store.read(LOCK)
            if content is None:
                return
            if content != first:
                raise self._refused(content)
        self._send(Warn(f"{_name(first)} shows no sign of life: its lock is taken over"))

    def _refused(self, content: bytes | None) -> UserError:
        return UserError(
            f"another process ({_name(content)}) is training in {self._store.url}; wait until it ends, or stop it"
        )

    def _holder(self) -> bytes:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "token": self.token,
            "beat": self._beats,
        }
        return json.dumps(holder).encode()


def _is_private(name: str) -> bool:
    return name == LOCK or any(part.startswith(".") for part in name.split("/"))


def _files(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [name for name in names if not _is_private(name)]


def _order(name: str) -> tuple[int, str]:
    """config.json first, result.json last, a checkpoint after the metrics that lead to it."""
    place = {"config.json": 0, "result.json": 3}.get(
        name, 2 if name.startswith("checkpoints/") else 1
    )
    return place, name


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _empty(folder: Path) -> None:
    """All but the lock and the logs, which are open."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK and not path.name.startswith("worker-"):
            path.unlink(missing_ok=True)


def _token(content: bytes | None) -> str:
    return str(_facts(content).get("token", ""))


def _name(content: bytes | None) -> str:
    facts = _facts(content)
    return f"pid {facts.get('pid', 'unknown')} on host {facts.get('host', 'unknown')}"


def _facts(content: bytes | None) -> dict[str, Any]:
    try:
        facts = json.loads(content or b"{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
