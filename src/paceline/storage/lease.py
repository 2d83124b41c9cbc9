"""The lease of a remote run folder: who may write, and which objects are the files of the run.

Both are one small object, `lease.json`, that is only ever replaced by a conditional write. Its
epoch number grows by one with each holder. A holder that was taken over has an old version in
hand: storage refuses its next write, whatever it does and whenever it wakes up. The holder makes
new files visible by the same write (`publish`), so it cannot damage what its successor wrote.

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
from paceline.storage.backends import StorageError, Store
from paceline.storage.conditional import Stamped, is_atomic, read_stamped, swap
from paceline.storage.files import to_log
from paceline.storage.lock import LeaseLost, name_of, own_facts, parse_holder, refusal

LEASE = "lease.json"
OLD_LOCK = "lock"
"""The lock object of versions without leases."""
FORMAT = 1
LOCK_TIMEOUT_S = float(os.environ.get("PACELINE_LOCK_TIMEOUT_S") or 60.0)
"""After this time without a sign of life, a lease is taken over."""
BEAT_EVERY_S = LOCK_TIMEOUT_S / 6
"""How often the holder must call `beat`."""


@dataclass(frozen=True)
class Lease:
    """The content of lease.json. `files` has the key of the object of each file of the run."""

    epoch: int
    holder: Mapping[str, Any]
    """Process, host and token of the last holder."""
    held: bool = True
    beat: int = 0
    files: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1).encode()

    @property
    def token(self) -> str:
        return str(self.holder.get("token", ""))


def parse_lease(content: bytes, url: str) -> Lease:
    """Return the lease in a file; raise UserError if it is damaged or newer than this program."""
    facts = parse_holder(content)
    if isinstance(facts.get("format"), int) and facts["format"] > FORMAT:
        raise UserError(f"{url} was written by a newer Paceline; update Paceline")
    try:
        lease = Lease(**{each.name: facts[each.name] for each in dataclasses.fields(Lease)})
        pairs = [*lease.files, *lease.files.values()]
        good = type(lease.epoch) is int and type(lease.beat) is int and type(lease.held) is bool
        good = good and lease.epoch > 0 <= lease.beat and isinstance(lease.holder, dict)
        good = good and all(isinstance(each, str) and not _escapes(each) for each in pairs)
    except (KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise UserError(f"{url}/{LEASE} is damaged; restore it from a copy, or use another folder")
    return lease


def read_lease(store: Store) -> Lease | None:
    """Return the lease of a folder, for readers; None if there is none."""
    content = store.read(LEASE)
    return None if content is None else parse_lease(content, store.url)


class Holder:
    """This process as a holder of the lease. Building one touches no network.

    `store` should have a connection of its own: a beat must not wait for an upload.
    """

    def __init__(self, store: Store, use: str) -> None:
        self.token = uuid.uuid4().hex
        self._store = store
        self._use = use
        self._lease: Lease | None = None
        self._stamp = ""
        self._lost: LeaseLost | None = None
        self._changing = threading.Lock()

    @property
    def epoch(self) -> int:
        return self._lease.epoch if self._lease else 0

    @property
    def files(self) -> dict[str, str]:
        """Return the files of the run as this holder published them last: name -> key."""
        return dict(self._lease.files) if self._lease else {}

    def acquire(
        self,
        earlier: str,
        warn: Callable[[str], None],
        adopt: Callable[[], tuple[int, dict[str, str]]],
    ) -> None:
        """Take the lease, or raise UserError if its holder is alive.

        `earlier` is the token of the last holder on this machine, which is known to have ended: if
        it still holds the lease, there is no need to wait. `adopt` returns the epoch to begin
        after and the files of a folder without a lease.
        """
        facts = own_facts() | {"token": self.token}
        ended = {earlier, self.token} - {""}
        while True:
            found = read_stamped(self._store, LEASE)
            if found is None:
                if old := self._store.read(OLD_LOCK):
                    self._watch(OLD_LOCK, old, ended, warn)
                epoch, files = adopt()
                wanted = Lease(epoch + 1, facts, files=files)
            else:
                lease = parse_lease(found.content, self._store.url)
                if lease.held:
                    self._watch(LEASE, found.content, ended, warn)
                wanted = Lease(lease.epoch + 1, facts, files=lease.files)
            # Refused if the lease has changed since it was read; then it is read again.
            if stamp := swap(self._store, LEASE, wanted.to_bytes(), found and found.stamp):
                self._lease, self._stamp = wanted, stamp
                break
        if not is_atomic(self._store):
            time.sleep(1.0)  # if two processes take over at once, the later one holds the lease
            self.beat()

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
            while not (stamp := swap(self._store, LEASE, content, self._stamp)):
                found = self._own_version()
                self._stamp = found.stamp
                if found.content == content:  # the answer to a write that succeeded was lost
                    stamp = found.stamp
                    break
            self._lease, self._stamp = wanted, stamp

    def _own_version(self) -> Stamped:
        """Return the lease as an earlier try of this holder left it, or raise LeaseLost."""
        found = read_stamped(self._store, LEASE)
        lease = parse_lease(found.content, self._store.url) if found else None
        if found and lease and lease.token == self.token:
            return found
        assert self._lease is not None
        self._lost = lost(dict(lease.holder) if lease else {}, self._store.url, self._lease.epoch)
        raise self._lost

    def _watch(self, name: str, first: bytes, ended: set[str], warn: Callable[[str], None]) -> None:
        """Wait until a lease or an old lock, now `first`, is known to be left behind.

        Raises UserError if it changes: its holder is alive.
        """
        holder = _holder_of(first)
        if str(holder.get("token")) in ended:
            return
        warn(
            f"{self._store.url} is locked by {name_of(holder)}; the lock is taken over if that "
            f"process shows no sign of life for {LOCK_TIMEOUT_S:.0f} s"
        )
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(min(1.0, LOCK_TIMEOUT_S / 12))
            content = self._store.read(name)
            if not _holder_of(content):
                return
            if content != first:
                raise refusal(_holder_of(content), self._use)
        warn(f"{name_of(holder)} shows no sign of life: its lock is taken over")


def lost(holder: dict[str, Any], where: str, epoch: int) -> LeaseLost:
    """Return the error of a holder that was taken over."""
    return LeaseLost(
        f"{name_of(holder)} has taken over {where}, because this run (lease {epoch}) showed no "
        f"sign of life for {LOCK_TIMEOUT_S:.0f} s; it ends here, and everything up to its last "
        "checkpoint is saved"
    )


def _holder_of(content: bytes | None) -> dict[str, Any]:
    """Return who holds a lease or an old lock; empty if nobody does."""
    facts = parse_holder(content)
    if "holder" not in facts:
        return facts
    return dict(facts["holder"]) if facts.get("held") and facts["holder"] else {}


def _escapes(name: str) -> bool:
    return bool({"", ".", ".."} & set(name.split("/")))
