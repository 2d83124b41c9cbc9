"""The lock of a folder on remote storage: an object that its holder writes again and again.

Nobody compares clocks: a process that finds a lock watches whether it changes.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable

from paceline.errors import UserError
from paceline.run_folder.lock import name_of, own_facts, parse_holder, refusal
from paceline.run_folder.storage import StorageError, Store

LOCK = "lock"
LOCK_TIMEOUT_S = float(os.environ.get("PACELINE_LOCK_TIMEOUT_S") or 60.0)
"""After this time without a change, a lock is taken over."""
BEAT_EVERY_S = LOCK_TIMEOUT_S / 6
"""How often the holder must call `beat`."""


class RemoteLock:
    """Who may write a remote folder. Building one touches no network."""

    def __init__(self, store: Store, use: str) -> None:
        self.token = uuid.uuid4().hex
        self._store = store
        self._use = use
        self._beats = 0
        self._lost_to = ""

    def acquire(self, earlier: str, warn: Callable[[str], None]) -> None:
        """Keep processes of every host out, or raise UserError if one of them is alive.

        `earlier` is the token of the last holder on this machine, which is known to have ended: if
        the lock is still its own, there is no need to wait.
        """
        if self._store.create(LOCK, self._content()):
            return
        self._wait(earlier, warn)
        self._store.put(LOCK, self._content())
        time.sleep(1.0)  # if two processes take over at once, the later one holds the lock
        content = self._store.read(LOCK)
        if parse_holder(content).get("token") != self.token:
            raise refusal(parse_holder(content), self._use)

    def release(self) -> None:
        """Let others in. If storage refuses, the lock is left behind, and the next one waits."""
        try:
            if parse_holder(self._store.read(LOCK)).get("token") == self.token:
                self._store.remove(LOCK)
        except StorageError as error:
            print(error, file=sys.stderr)  # into the log

    def beat(self) -> None:
        """Show that the holder is alive."""
        self.check()
        self._beats += 1
        self._store.put(LOCK, self._content())

    def check(self) -> None:
        """Raise UserError if another process has taken over: then nothing more may be written."""
        if not self._lost_to:
            content = self._store.read(LOCK)
            holder = parse_holder(content)
            if content is not None and holder.get("token") != self.token:
                self._lost_to = name_of(holder)
        if self._lost_to:
            raise UserError(
                f"{self._lost_to} has taken over {self._store.url}, because this run showed no "
                f"sign of life for {LOCK_TIMEOUT_S:.0f} s; it ends here, and everything up to "
                "its last checkpoint is saved"
            )

    def is_lost(self) -> bool:
        """Return whether a `check` has found another holder."""
        return bool(self._lost_to)

    def _wait(self, earlier: str, warn: Callable[[str], None]) -> None:
        """Wait until the lock is known to be left behind; raise UserError if it changes."""
        first = self._store.read(LOCK)
        holder = parse_holder(first)
        if first is None or (earlier and holder.get("token") == earlier):
            return
        warn(
            f"{self._store.url} is locked by {name_of(holder)}; the lock is taken over if that "
            f"process shows no sign of life for {LOCK_TIMEOUT_S:.0f} s"
        )
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while time.monotonic() < deadline:
            time.sleep(min(1.0, LOCK_TIMEOUT_S / 12))
            content = self._store.read(LOCK)
            if content is None:
                return
            if content != first:
                raise refusal(parse_holder(content), self._use)
        warn(f"{name_of(holder)} shows no sign of life: its lock is taken over")

    def _content(self) -> bytes:
        facts = own_facts() | {"token": self.token, "beat": self._beats}
        return json.dumps(facts).encode()
