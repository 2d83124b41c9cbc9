"""The lease of a remote run folder: who may write, and which objects are the files of the run.

Both are in one small object, `lease.json`, which is replaced only by conditional writes. Its epoch
number grows by one with each holder. A holder that was taken over has an old version in hand:
storage refuses its next write, whatever it does and whenever it wakes up. The holder makes new
files visible with the same write (`publish`), so it cannot damage what its successor wrote.

Nobody compares clocks: a process that finds a lease watches whether its holder writes it again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UserError
from paceline.storage.files import to_log
from paceline.storage.lock import NOBODY, LeaseLost, Owner, parse_owner, refusal, this_process
from paceline.storage.remote import Stamped, StorageError, Store

LEASE = "lease.json"
FORMAT = 1
LOCK_TIMEOUT_S = float(os.environ.get("PACELINE_LOCK_TIMEOUT_S") or 60.0)
"""After this time without a sign of life, a lease is taken over."""
BEAT_EVERY_S = LOCK_TIMEOUT_S / 6
"""How often the holder must call `beat`."""
REQUEST_S = max(5.0, LOCK_TIMEOUT_S / 4)
"""Longest request for a lease: after a lost one there is time for another."""


@dataclass(frozen=True)
class Lease:
    """The content of lease.json. `files` maps each file of the run to the key of its object."""

    owner: Owner = NOBODY
    held: bool = True
    beat: int = 0
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        return self.owner.epoch

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1).encode()


def parse_lease(content: bytes, url: str) -> Lease:
    """Return the lease in a file; raise UserError if it is damaged or newer than this program."""
    try:
        facts = json.loads(content)
        if facts["format"] > FORMAT:
            raise UserError(f"{url} was written by a newer Paceline; update Paceline")
        lease = Lease(parse_owner(facts["owner"]), facts["held"], facts["beat"], facts["files"])
        pairs = [*lease.files, *lease.files.values()]
        types = (type(lease.held), type(lease.beat), *map(type, pairs))
        good = types == (bool, int, *[str] * len(pairs)) and lease.epoch > 0 <= lease.beat
        good = good and not any(map(_escapes, pairs))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise UserError(f"{url}/{LEASE} is damaged; restore it from a copy, or use another folder")
    return lease


def read_lease(store: Store) -> Lease | None:
    """Return the lease of a folder, for readers; None if there is none."""
    content = store.read(LEASE)
    return None if content is None else parse_lease(content, store.url)


def read_run_lease(store: Store) -> Lease:
    """Return the lease of a run folder; a new folder has one without files.

    Raises UserError if a folder without a lease contains anything.
    """
    lease = read_lease(store)
    if lease is None:
        _check_empty(store)
    return lease or Lease()


class Holder:
    """This process as a holder of the lease. Building one touches no network.

    `store` should have its own connections: a beat must not wait for an upload.
    """

    def __init__(self, store: Store, use: str) -> None:
        self.token = uuid.uuid4().hex
        self._store = store
        self._use = use
        self._lease: Lease | None = None
        self._version: Mapping[str, str] = {}
        self._lost: LeaseLost | None = None
        self._changing = threading.Lock()

    @property
    def epoch(self) -> int:
        return self._lease.epoch if self._lease else 0

    @property
    def files(self) -> dict[str, str]:
        """Return the files of the run as this holder published them last: name -> key."""
        return dict(self._lease.files) if self._lease else {}

    def acquire(self, earlier: str, warn: Callable[[str], None]) -> None:
        """Take the lease, or raise UserError if its holder is alive or the folder is not a run's.

        `earlier` is the token of the last holder on this machine, which is known to have ended: if
        it still holds the lease, there is no need to wait.
        """
        while True:
            found = self._store.read_stamped(LEASE)
            if found is None:
                _check_empty(self._store)
                lease = Lease(held=False)
            else:
                lease = parse_lease(found.content, self._store.url)
            if lease.held and lease.owner.token not in (earlier, self.token):
                self._watch(lease, warn)
            wanted = Lease(this_process(self.token, lease.epoch + 1), files=lease.files)
            # Refused if the lease has changed since it was read; then it is read again.
            version = self._store.swap(LEASE, wanted.to_bytes(), found.version if found else None)
            if version is not None:
                self._lease, self._version = wanted, version
                return

    def beat(self) -> None:
        """Show that the holder is alive; raise LeaseLost if another process has taken over."""
        self._change()

    def publish(self, files: Mapping[str, str]) -> None:
        """Make these the files of the run, in one step; raise LeaseLost as `beat` does."""
        self._change(files=dict(files))

    def release(self) -> None:
        """Let others in. If storage refuses, the lease is left behind, and the next one waits."""
        try:
            if self._lease and not self._lost:
                self._change(held=False)
        except (StorageError, LeaseLost) as error:
            to_log(error)
        self._lease = None

    def check(self) -> None:
        """Raise LeaseLost if a write has found that another process has taken over."""
        if self._lost:
            raise self._lost

    def _change(self, **changes: Any) -> None:
        with self._changing:
            self.check()
            assert self._lease is not None, "the lease is not held"
            wanted = dataclasses.replace(self._lease, beat=self._lease.beat + 1, **changes)
            content = wanted.to_bytes()
            while (version := self._store.swap(LEASE, content, self._version)) is None:
                found = self._own_version()
                self._version = found.version
                if found.content == content:  # the answer to a write that succeeded was lost
                    version = found.version
                    break
            self._lease, self._version = wanted, version

    def _own_version(self) -> Stamped:
        """Return the lease as an earlier try of this holder left it, or raise LeaseLost."""
        found = self._store.read_stamped(LEASE)
        lease = parse_lease(found.content, self._store.url) if found else None
        if found and lease and lease.owner.token == self.token:
            return found
        who = f"{lease.owner} has taken over" if lease else "somebody has removed"
        self._lost = LeaseLost(
            f"{who} {self._store.url}, because this run (lease {self.epoch}) showed no sign of "
            f"life for {LOCK_TIMEOUT_S:.0f} s; it ends here, and everything up to its last "
            "checkpoint is saved"
        )
        raise self._lost

    def _watch(self, lease: Lease, warn: Callable[[str], None]) -> None:
        """Wait until a lease is known to be left behind.

        Raises UserError if it changes: its holder is alive.
        """
        warn(
            f"{self._store.url} is locked by {lease.owner}; the lock is taken over if "
            f"that process shows no sign of life for {LOCK_TIMEOUT_S:.0f} s"
        )
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(min(1.0, LOCK_TIMEOUT_S / 12))
            now = read_lease(self._store)
            if now is None or not now.held:
                return
            if now != lease:
                raise refusal(now.owner, self._use)
        warn(f"{lease.owner} shows no sign of life: its lock is taken over")


def _check_empty(store: Store) -> None:
    """Raise UserError if a folder without a lease contains anything."""
    names = list(store.files())
    if LEASE in names:  # another process has just made it
        return
    if any(name.startswith("attempts/") for name in names):
        raise UserError(
            f"{store.url} has lost its {LEASE}, which names its files; restore it from a copy, or "
            "use another folder"
        )
    if names:
        raise UserError(
            f"{store.url} is not a run folder: it has {names[0]} but no {LEASE}; use a new or "
            "empty --run-dir"
        )


def _escapes(name: str) -> bool:
    return bool({"", ".", ".."} & set(name.split("/")))
