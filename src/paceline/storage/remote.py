"""A run folder on remote storage: the local side, which all other code uses, and the remote side.

The process that trains holds the lease (`lease`), fetches the remote side, and uploads what changes
(`layout` has the names). A file is uploaded under a key that was never used before, and becomes
visible when the lease names it, together with all files that belong to it. So training can resume
from the remote side at any moment, and a process that was taken over changes nothing that its
successor sees. The local side is scratch: it is removed before a `pull` and after a clean end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from paceline.errors import UserError
from paceline.messages import Send, Transfer, Warn
from paceline.storage import layout
from paceline.storage.backends import StorageError, StorageFault, Store
from paceline.storage.conditional import is_atomic
from paceline.storage.files import to_log
from paceline.storage.layout import Entry
from paceline.storage.lease import Holder
from paceline.storage.transfer import fetch_files, retry_storage

READS = 5
"""How often a run that changes while it is read is read again."""


class RemoteRun:
    """Both sides of a remote run folder. Building one touches neither disk nor network.

    `lease_store` leads to the same folder by another connection.
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
        self._uploading = threading.Lock()
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
        if not is_atomic(self._store):
            self._warn(
                f"{self.url} cannot write conditionally: if two commands take over a run within "
                "one second, or one wakes up while it writes, both may write"
            )
        acquire = partial(self._lease.acquire, earlier, self._warn, self._adopt)
        retry_storage(acquire, self._warn)

    def unlock(self) -> None:
        """Let others in, and leave nothing but logs on this machine."""
        if self._lease.epoch:
            self._lease.release()
            layout.empty(self._local)

    def beat(self) -> None:
        """Show that this process is alive, also while an upload is under way."""
        if self._uploading.locked():  # storage ends what takes too long: not a stall
            self._report(f"uploading to {self.url}")
        self._lease.beat()

    def check(self) -> None:
        """Raise LeaseLost if another process is known to have taken over."""
        self._lease.check()

    def pull(self) -> None:
        """Make the local side equal to the remote one, but for checkpoints (`pull_checkpoints`)."""
        layout.empty(self._local)
        self._seen, self._uploaded = {}, {}
        self._bring(lambda name: not layout.is_checkpoint(name))

    def pull_checkpoints(self) -> None:
        """Fetch all checkpoints: only here it can be seen which are whole, and which is best."""
        self._bring(layout.is_checkpoint)

    def refresh(self) -> None:
        """Fetch what others have uploaded since, and drop the checkpoints that they pruned."""
        there = self._bring(lambda name: True)
        for name in layout.local_files(self._local):
            if layout.is_checkpoint(name) and name not in there:
                (self._local / name).unlink(missing_ok=True)

    def add(self, names: list[str]) -> None:
        """Upload files that nobody else writes. `refresh` does not fetch them again."""
        self._own |= set(names)
        self._upload(names)

    def publish(self) -> None:
        """Upload what has changed. After this, a run that resumes elsewhere finds it."""
        with self._uploading:
            self._lease.check()
            names = layout.local_files(self._local)
            self._upload(sorted(names, key=layout.order))
            pruned = {
                name
                for name in self._lease.files
                if layout.is_checkpoint(name) and name in self._uploaded and name not in names
            }
            self._make_visible(pruned)

    def publish_in_background(self) -> None:
        """Upload what readers want to see between two checkpoints: metrics, events, logs."""
        with self._uploading:
            self._lease.check()
            self._upload([n for n in layout.local_files(self._local) if layout.order(n)[0] == 1])
            self._make_visible(())

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

    def _adopt(self) -> tuple[int, dict[str, str]]:
        """Return what a folder without a lease has: its last event file, and its files."""
        view = layout.view_of(self._store, None)
        others = [name for name in view if not layout.is_log(name)]
        if others and "config.json" not in view:
            raise UserError(
                f"{self.url} is not a run folder: it has {others[0]} but no config.json; "
                "use a new or empty --run-dir"
            )
        files = {name: entry.key for name, entry in view.items() if not layout.is_plain(name)}
        return layout.last_event_number(view), files

    def _bring(self, wanted: Callable[[str], bool]) -> dict[str, Entry]:
        """Fetch what is wanted and new; return all files of the run as they were at one moment."""
        for _ in range(READS):
            there = retry_storage(self._view, self._report)
            missing = {
                name: entry
                for name, entry in there.items()
                if wanted(name) and not layout.is_log(name)
                if self._seen.get(name) != entry and name not in self._own
            }
            if self._fetch(missing):
                return there
        raise StorageFault(f"cannot read {self.url}: it changes faster than it can be read")

    def _view(self) -> dict[str, Entry]:
        if not self._lease.epoch:
            return layout.view(self._store)
        listed = self._store.files()
        self._unused |= layout.left_behind(listed, self._lease.files, self._lease.epoch)
        return layout.view_of(self._store, self._lease.files, listed)

    def _fetch(self, entries: dict[str, Entry]) -> bool:
        """Fetch files; return False if a key is gone, because its file was replaced meanwhile."""
        names = {entry.key: name for name, entry in entries.items()}
        gone: list[str] = []

        def check(key: str, found: bool) -> None:
            if found:
                name = names[key]
                self._seen[name] = entries[name]
                if stat := layout.stat(self._local / name):
                    self._uploaded[name] = stat
            elif not layout.is_plain(key):
                gone.append(key)

        sizes = {entry.key: entry.file.size for entry in entries.values()}
        fetch_files(self._store, sizes, self._local, self._report, check, names)
        return not gone

    def _upload(self, names: list[str]) -> None:
        for name in names:
            stat = layout.stat(self._local / name)
            if stat and self._uploaded.get(name) != stat:
                retry_storage(partial(self._put, name), self._warn)
                self._uploaded[name] = stat

    def _put(self, name: str) -> None:
        """Upload a file. Each try has a new key: an earlier one may still arrive, and be older."""
        if name in self._own or layout.is_plain(name):
            self._store.put(name, self._local / name)
            return
        self._num_uploads += 1
        key = layout.new_key(name, self._lease.epoch, self._num_uploads)
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
