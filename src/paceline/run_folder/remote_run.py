"""A run folder on remote storage: the local side, which all other code uses, and the remote side.

The process that trains holds the lease, fetches the remote side, and uploads what changes. A file
is uploaded under a key that was never used before, `attempts/EPOCH/NUMBER/NAME`. It becomes visible
when the lease names it, together with all files that belong to it. So training can resume from the
remote side at any moment, and a process that was taken over changes nothing that its successor
sees. Event files, logs and the evaluator's files keep their plain names: each has one writer, and
TensorBoard reads them itself.

The local side is scratch: it is removed before a `pull` and after a clean end.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UserError
from paceline.messages import Send, Transfer, Warn
from paceline.storage.files import stat_of, to_log
from paceline.storage.lease import BEAT_EVERY_S, LEASE, REQUEST_S, Holder, read_run_lease
from paceline.storage.lock import LeaseLost
from paceline.storage.remote import (
    File,
    StorageError,
    StorageFault,
    Store,
    open_to_write,
    retry_storage,
)
from paceline.storage.transfer import fetch_files

PLAIN = re.compile(r"events/.|evaluations\.jsonl$|[^/]*\.log$")
KEPT = ("lock", ".commands")
"""Files of the local side that commands have open."""
READS = 5
"""How often a run that changes while it is read is read again."""


class Entry(NamedTuple):
    """A file of a run on storage: the key of its object, its size and its stamp."""

    key: str
    file: File


class RemoteRun:
    """Both sides of a remote run folder. Building one touches neither disk nor network.

    `lease_store` is the same folder with its own connections.
    """

    def __init__(self, store: Store, local: Path, lease_store: Store | None = None) -> None:
        self._store = store
        self._local = local
        self._lease = Holder(lease_store or store, f"training in {store.url}")
        self._seen: dict[str, Entry] = {}  # what was fetched
        self._uploaded: dict[str, tuple[int, int]] = {}  # size and time of the local file
        self._unpublished: dict[str, str] = {}  # uploaded, but not in the lease yet: name -> key
        self._unused: set[str] = set()  # keys that no lease will ever name
        self._own: set[str] = set()  # what `add` uploaded
        self._num_uploads = 0
        self._uploading = False
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None
        self._send: Send = lambda message: None

    @property
    def token(self) -> str:
        """Return what distinguishes this holder of the lease from others."""
        return self._lease.token

    @property
    def epoch(self) -> int:
        """Return the number of the lease, 0 if it is not held."""
        return self._lease.epoch

    @property
    def url(self) -> str:
        return self._store.url

    def lock(self, earlier: str, send: Send) -> None:
        """Keep others out, on any host, until `unlock`; see `lease.Holder.acquire`."""
        self._send = send
        retry_storage(partial(self._lease.acquire, earlier, self._warn), self._warn)

    def keep_alive(self) -> None:
        """Show signs of life in a separate thread until `unlock`, also during an upload."""
        self._ended.clear()
        self._beating = threading.Thread(target=self._beat_until_the_end, daemon=True)
        self._beating.start()

    def unlock(self) -> None:
        """Let others in, and leave nothing but logs on this machine."""
        if self._beating:
            self._ended.set()
            self._beating.join()
        if self._lease.epoch:
            self._lease.release()
            _empty(self._local)

    def beat(self) -> None:
        """Show once that this process is alive."""
        if self._uploading:  # storage ends what takes too long: not a stall
            self._report(f"uploading to {self.url}")
        self._lease.beat()

    def check(self) -> None:
        """Raise LeaseLost if another process is known to have taken over."""
        self._lease.check()

    def pull(self) -> None:
        """Make the local side equal to the remote one, but for checkpoints (`pull_checkpoints`)."""
        _empty(self._local)
        self._seen, self._uploaded = {}, {}
        self._bring(lambda name: not is_checkpoint(name))

    def pull_checkpoints(self) -> None:
        """Fetch all checkpoints: only here can be seen which are complete, and which is best."""
        self._bring(is_checkpoint)

    def refresh(self) -> None:
        """Fetch what others have uploaded since, and drop the checkpoints that they pruned."""
        there = self._bring(lambda name: True)
        for name in _local_files(self._local):
            if is_checkpoint(name) and name not in there:
                (self._local / name).unlink(missing_ok=True)

    def add(self, names: list[str]) -> None:
        """Upload files that nobody else writes. `refresh` does not fetch them again."""
        self._own |= set(names)
        self._upload(names)

    def publish(self) -> None:
        """Upload what has changed. After this, a run that resumes elsewhere finds it."""
        self._lease.check()
        names = _local_files(self._local)
        self._uploading = True
        try:
            self._upload(sorted(names, key=_upload_order))
        finally:
            self._uploading = False
        pruned = {
            name
            for name in self._lease.files
            if is_checkpoint(name) and name in self._uploaded and name not in names
        }
        self._make_visible(pruned)

    def _make_visible(self, removed: Collection[str]) -> None:
        """Name what was uploaded in the lease, without `removed`; then delete what it replaced."""
        before = self._lease.files
        files = {name: key for name, key in before.items() if name not in removed}
        files |= self._unpublished
        if files != before:
            retry_storage(partial(self._lease.publish, files), self._warn)
            self._unpublished = {}
            self._unused |= set(before.values()) - set(files.values())
        self._delete_unused()

    def _delete_unused(self) -> None:
        """Delete what no reader needs. What storage refuses to delete is left for the next time."""
        try:
            for key in list(self._unused):
                self._store.remove(key)
                self._unused.discard(key)
        except StorageError as error:
            to_log(error)

    def _beat_until_the_end(self) -> None:
        """Beat again and again. A failure does not end the run: the next `publish` raises it."""
        failed = False
        while not self._ended.wait(BEAT_EVERY_S):
            try:
                self.beat()
                failed = False
            except LeaseLost:
                return
            except (UserError, OSError) as error:
                to_log(error)
                if not failed:
                    self._warn(str(error))
                failed = True

    def _bring(self, wanted: Callable[[str], bool]) -> dict[str, Entry]:
        """Fetch what is wanted and new; return all files of the run as they were at one moment."""
        for _ in range(READS):
            there = retry_storage(self._view, self._report)
            missing = {
                name: entry
                for name, entry in there.items()
                if wanted(name) and not _is_log(name)
                if self._seen.get(name) != entry and name not in self._own
            }
            if self._fetch(missing):
                return there
        raise StorageFault(f"cannot read {self.url}: it changes faster than it can be read")

    def _view(self) -> dict[str, Entry]:
        """Return all files of the run by name, as they are now."""
        leased = self._lease.files if self._lease.epoch else read_run_lease(self._store).files
        listed = self._store.files()
        if self._lease.epoch:
            self._unused |= _left_behind(listed, self._lease)
        plain = {name: Entry(name, file) for name, file in listed.items() if PLAIN.match(name)}
        # A key that is not listed was replaced since the lease was read: fetching it finds out.
        none = File(0, "")
        return plain | {name: Entry(key, listed.get(key, none)) for name, key in leased.items()}

    def _fetch(self, entries: dict[str, Entry]) -> bool:
        """Fetch files; return False if a key is gone, because its file was replaced meanwhile."""
        names = {entry.key: name for name, entry in entries.items()}

        def fetched(key: str) -> None:
            name = names[key]
            self._seen[name] = entries[name]
            if stat := stat_of(self._local / name):
                self._uploaded[name] = stat

        targets = {key: self._local / name for key, name in names.items()}
        total_bytes = sum(entry.file.size for entry in entries.values())
        missing = fetch_files(self._store, targets, total_bytes, self._report, fetched)
        return all(PLAIN.match(key) for key in missing)

    def _upload(self, names: list[str]) -> None:
        for name in names:
            stat = stat_of(self._local / name)
            if stat and self._uploaded.get(name) != stat:
                retry_storage(partial(self._put, name), self._warn)
                self._uploaded[name] = stat

    def _put(self, name: str) -> None:
        """Upload a file. Each try has a new key: an earlier one may still arrive, and be older."""
        if PLAIN.match(name):
            self._store.put(name, self._local / name)
            return
        self._num_uploads += 1
        key = f"attempts/{self._lease.epoch}/{self._num_uploads}/{name}"
        self._unused.add(key)
        self._store.put(key, self._local / name)
        self._unused.discard(key)
        if replaced := self._unpublished.get(name):
            self._unused.add(replaced)
        self._unpublished[name] = key

    def _warn(self, text: str) -> None:
        self._send(Warn(text))

    def _report(self, text: str) -> None:
        self._send(Transfer(text))


def open_both_sides(url: str, local: Path) -> RemoteRun:
    """Return a run folder for the process that trains; raise UserError if it cannot be there."""
    return RemoteRun(open_to_write(url), local, Store(url, REQUEST_S))


def is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoints/")


def _left_behind(listed: Iterable[str], lease: Holder) -> set[str]:
    """Return keys of earlier leases that this one does not name: no later lease will either."""
    keys = (key for key in listed if re.match(r"attempts/\d+/\d+/.", key))
    return {key for key in keys if int(key.split("/")[1]) < lease.epoch} - set(lease.files.values())


def _is_log(name: str) -> bool:
    """Return whether this is a log file: those are open, and never fetched."""
    return bool(re.match(r"[^/]*\.log$", name))


def _upload_order(name: str) -> tuple[int, str]:
    """Sort config.json first, result.json last, a checkpoint after the metrics that lead to it."""
    special = {"config.json": 0, "result.json": 3}
    return special.get(name, 2 if is_checkpoint(name) else 1), name


def _local_files(folder: Path) -> list[str]:
    """Return the names of the files on the local side."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [
        name
        for name in names
        if name not in ("lock", LEASE) and not any(part.startswith(".") for part in name.split("/"))
    ]


def _empty(folder: Path) -> None:
    """Remove everything on the local side but the lock and the logs, which are open."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in KEPT and not _is_log(path.name):
            path.unlink(missing_ok=True)
