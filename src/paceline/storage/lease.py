"""The lease of a remote run folder: who may write, and which objects are the files of the run.

Both are in one small object, `lease.json`, which is replaced only by conditional writes. Its epoch
number grows by one with each holder. A holder that was taken over has an old version in hand:
storage refuses its next write, whatever it does and whenever it wakes up. The holder makes new
files visible with the same write (`publish`), so it cannot damage what its successor wrote.

Nobody compares clocks: a process that finds a lease watches whether its holder writes it again.
"""

import dataclasses
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.errors import UserError
from paceline.storage.files import to_log
from paceline.storage.locations import seconds
from paceline.storage.lock import NOBODY, LeaseLost, Owner, parse_owner, refusal, this_process
from paceline.storage.remote import StorageError, Store, Version, leaves_folder

LEASE = "lease.json"
FORMAT = 1
LOCK_TIMEOUT_S = seconds("PACELINE_LOCK_TIMEOUT_S", 60.0)
"""After this time without a sign of life, a lease is taken over."""
BEAT_EVERY_S = LOCK_TIMEOUT_S / 6
"""How often the holder must call `beat`."""
REQUEST_S = max(5.0, LOCK_TIMEOUT_S / 4)
"""Longest request for a lease: after a lost one there is time for another."""


@dataclass(frozen=True)
class Lease:
    """The content of lease.json. `files` maps each file of the run to the key of its object."""

    owner: Owner = NOBODY
    held: bool = False
    beat: int = 0
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        return self.owner.epoch

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1).encode()


def read_lease(store: Store) -> tuple[Lease, Version | None]:
    """Return the lease of a folder and its version; a new folder has an empty one without version.

    Raises UserError if the lease is damaged, or a folder without one contains anything.
    """
    if found := store.read_versioned(LEASE):
        return parse_lease(found[0], store.url), found[1]
    names = list(store.files())
    if names and LEASE not in names:  # else another process has just made it
        raise UserError(
            f"{store.url} is not a run folder: it has {names[0]} but no {LEASE}, which names the "
            "files of a run; restore it from a copy, or use a new or empty --run-dir"
        )
    return Lease(), None


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
        good = good and not any(map(leaves_folder, pairs))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise UserError(f"{url}/{LEASE} is damaged; restore it from a copy, or use another folder")
    return lease


class Holder:
    """This process as a holder of the lease. Building one touches no network.

    `store` should have its own connections: a beat must not wait for an upload.
    """

    def __init__(self, store: Store, use: str) -> None:
        self.token = uuid.uuid4().hex
        self.lease = Lease()
        """As this holder wrote it last."""
        self._store = store
        self._use = use
        self._version: Version | None = None
        self._lost: LeaseLost | None = None
        self._changing = threading.Lock()

    def acquire(self, earlier: str, warn: Callable[[str], None]) -> None:
        """Take the lease, or raise UserError if its holder is alive or the folder is not a run's.

        `earlier` is the token of the last holder on this machine, which is known to have ended.
        """
        while True:
            lease, version = read_lease(self._store)
            if lease.held and lease.owner.token not in (earlier, self.token):
                self._watch(lease, warn)
            owner = this_process(self.token, lease.epoch + 1)
            wanted = Lease(owner, held=True, files=lease.files)
            # Refused if the lease has changed since it was read; then it is read again.
            if new := self._store.swap(LEASE, wanted.to_bytes(), version):
                self.lease, self._version = wanted, new
                return

    def change(self, files: Mapping[str, str] | None = None, held: bool = True) -> None:
        """Write the lease again; raise LeaseLost if it was taken over.

        Without arguments this is a beat. New `files` become the files of the run in one step.
        """
        with self._changing:
            self.check()
            assert self.lease.epoch, "the lease is not held"
            files = self.lease.files if files is None else files
            wanted = Lease(self.lease.owner, held, self.lease.beat + 1, files)
            content = wanted.to_bytes()
            while (version := self._store.swap(LEASE, content, self._version)) is None:
                found, self._version = self._own_version()
                if found == wanted:  # the answer to a write that succeeded was lost
                    version = self._version
                    break
            self.lease, self._version = wanted, version

    def release(self) -> None:
        """Let others in. If storage refuses, the lease is left behind, and the next one waits."""
        try:
            if self.lease.held and not self._lost:
                self.change(held=False)
        except (StorageError, LeaseLost) as error:
            to_log(error)
        self.lease = Lease()

    def check(self) -> None:
        """Raise LeaseLost if a write has found that another process has taken over."""
        if self._lost:
            raise self._lost

    def _own_version(self) -> tuple[Lease, Version]:
        """Return the lease as an earlier try of this holder left it, or raise LeaseLost."""
        found = self._store.read_versioned(LEASE)
        lease = parse_lease(found[0], self._store.url) if found else Lease()
        if found and lease.owner.token == self.token:
            return lease, found[1]
        silence = f"this run (lease {self.lease.epoch}) was silent for {LOCK_TIMEOUT_S:.0f} s"
        who = f"{lease.owner} has taken over, because {silence}" if found else "it was removed"
        self._lost = LeaseLost(
            f"{self._store.url}/{LEASE}: {who}; this run ends here, and everything up to its last "
            "checkpoint is saved"
        )
        raise self._lost

    def _watch(self, lease: Lease, warn: Callable[[str], None]) -> None:
        """Wait until a lease is known to be left behind; if it changes, its holder is alive."""
        warn(
            f"{self._store.url} is locked by {lease.owner}; the lock is taken over if "
            f"that process shows no sign of life for {LOCK_TIMEOUT_S:.0f} s"
        )
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(min(1.0, LOCK_TIMEOUT_S / 12))
            now, _ = read_lease(self._store)
            if not now.held:
                return
            if now != lease:
                raise refusal(now.owner, self._use)
        warn(f"{lease.owner} shows no sign of life: its lock is taken over")
