"""A run folder on remote storage: the local side, which all other code uses, and the remote side.

The process that trains holds the lease, fetches the remote side, and uploads what changes. A file
is uploaded under a key that was never used before, `attempts/EPOCH/NUMBER/NAME`. It becomes visible
when the lease names it, together with all files that belong to it. So training can resume from the
remote side at any moment, and a process that was taken over changes nothing that its successor
sees. Event files, logs and the evaluator's files keep their plain names: each has one writer, and
TensorBoard reads them itself.

The local side is scratch: it is removed before a `pull` and after a clean end.
"""

import re
import shutil
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

from paceline.errors import UserError
from paceline.messages import Send, Transfer, Warn
from paceline.storage.files import to_log
from paceline.storage.lease import BEAT_EVERY_S, REQUEST_S, Holder, read_lease
from paceline.storage.lock import LeaseLost
from paceline.storage.remote import (
    File,
    StorageFault,
    Store,
    fetch_files,
    open_to_write,
    retry_storage,
)

LOG = re.compile(r"[^/]*\.log$")
"""Logs are open while a run is used: they are neither fetched nor removed."""
PLAIN = re.compile(rf"events/.|(evaluations|audits)\.jsonl$|{LOG.pattern}")


class RemoteRun:
    """Both sides of a remote run folder. Building one touches neither disk nor network.

    `lease_store` is the same folder with its own connections.
    """

    def __init__(self, store: Store, local: Path, lease_store: Store | None = None) -> None:
        self.holder = Holder(lease_store or store, f"training in {store.url}")
        self._store = store
        self._local = local
        self._fetched: dict[str, str] = {}  # name -> key
        self._uploaded: dict[str, tuple[int, int]] = {}  # size and time of the local file
        self._num_uploads = 0
        self._uploading = False
        self._publishing = threading.Lock()
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None
        self._send: Send = lambda message: None

    def lock(self, earlier: str, send: Send) -> None:
        """Keep others out, on any host, until `unlock`; see `lease.Holder.acquire`."""
        self._send = send
        retry_storage(partial(self.holder.acquire, earlier, self._warn), self._warn)

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
        if self.holder.lease.epoch:
            self.holder.release()
            _empty(self._local)

    def beat(self) -> None:
        """Show once that this process is alive."""
        if self._uploading:  # storage ends what takes too long: not a stall
            self._report(f"uploading to {self._store.url}")
        self.holder.change()

    def pull(self) -> None:
        """Make the local side equal to the remote one, but for checkpoints."""
        _empty(self._local)
        self._fetched, self._uploaded = {}, {}
        self.refresh(checkpoints=False)
        self._remove_unnamed()

    def refresh(self, checkpoints: bool = True) -> None:
        """Fetch what is new on storage, and drop the checkpoints that others pruned. All
        checkpoints come: only here can be seen which are complete, and which is best."""
        for _ in range(5):
            keys, listed = retry_storage(self._view, self._report)
            wanted = {
                name: key
                for name, key in keys.items()
                if self._fetched.get(name) != key and (checkpoints or not is_checkpoint(name))
            }
            targets = {key: self._local / name for name, key in wanted.items()}
            total_bytes = sum(listed[key].size for key in targets if key in listed)
            missing = fetch_files(self._store, targets, total_bytes, self._report)
            here = _local_files(self._local)
            for name in wanted.keys() & here.keys():
                self._fetched[name], self._uploaded[name] = wanted[name], here[name]
            if all(PLAIN.match(key) for key in missing):  # else a file was replaced meanwhile
                for name in filter(is_checkpoint, here.keys() - keys.keys()):
                    (self._local / name).unlink(missing_ok=True)
                return
            if self.holder.lease.epoch:  # a successor may have removed it: then this says so
                retry_storage(self.holder.change, self._warn)
        raise StorageFault(f"cannot read {self._store.url}: it changes faster than it can be read")

    def add(self, name: str) -> None:
        """Upload a file that nobody else writes."""
        retry_storage(partial(self._store.put, name, self._local / name), self._warn)

    def publish(self) -> None:
        """Upload what has changed. After this, a run that resumes elsewhere finds it."""
        with self._publishing:  # a survivor's thread publishes too, and removes what has no name
            try:
                self._publish()
            except LeaseLost:
                self._remove_unnamed()
                raise
            self._remove_unnamed()

    def _publish(self) -> None:
        self.holder.check()
        here, before = _local_files(self._local), self.holder.lease.files
        changed = {name: stat for name, stat in here.items() if self._uploaded.get(name) != stat}
        known = {name for name in before if is_checkpoint(name) and name in self._uploaded}
        files = {name: key for name, key in before.items() if name in here or name not in known}
        self._uploading = True
        try:
            for name in changed:
                if PLAIN.match(name):
                    self.add(name)
                else:
                    files[name] = retry_storage(partial(self._put, name), self._warn)
        finally:
            self._uploading = False
        if files != before:
            retry_storage(partial(self.holder.change, files=files), self._warn)
        self._uploaded |= changed

    def _remove_unnamed(self) -> None:
        """Remove what this holder or an earlier one uploaded and the lease does not name.

        Nobody will name it: a holder names what it uploads itself and what was named before.
        """
        try:
            named = set(read_lease(self._store)[0].files.values())
            for key in self._store.files().keys() - named:
                attempt = re.match(r"attempts/(\d+)/\d+/.", key)
                if attempt and int(attempt[1]) <= self.holder.lease.epoch:  # not a successor's
                    self._store.remove(key)
        except UserError as error:  # left for the next time
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

    def _view(self) -> tuple[dict[str, str], dict[str, File]]:
        """Return the key of each file of the run, and all objects, as they are now."""
        held = self.holder.lease
        leased = held.files if held.epoch else read_lease(self._store)[0].files
        listed = self._store.files()
        plain = {name: name for name in listed if PLAIN.match(name) and not LOG.match(name)}
        new = {name: name for name in plain if not (self._local / name).exists()}
        return new | dict(leased), listed

    def _put(self, name: str) -> str:
        """Upload a file. Each try has a new key: an earlier one may still arrive, and be older."""
        self._num_uploads += 1
        key = f"attempts/{self.holder.lease.epoch}/{self._num_uploads}/{name}"
        self._store.put(key, self._local / name)
        return key

    def _warn(self, text: str) -> None:
        self._send(Warn(text))

    def _report(self, text: str) -> None:
        self._send(Transfer(text))


def open_both_sides(url: str, local: Path) -> RemoteRun:
    """Return a run folder for the process that trains; raise UserError if it cannot be there."""
    return RemoteRun(open_to_write(url), local, Store(url, REQUEST_S))


def is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoints/")


def _local_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file on the local side, by name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        with suppress(FileNotFoundError):
            stat = path.stat()
            if path.is_file() and name != "lock" and not re.search(r"(^|/)\.", name):
                found[name] = stat.st_size, stat.st_mtime_ns
    return found


def _empty(folder: Path) -> None:
    """Remove everything on the local side but the lock and the logs, which are open."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != "lock" and not LOG.match(path.name):
            path.unlink(missing_ok=True)
