"""Threads beside a training in a remote folder: signs of life, and uploads between checkpoints.

They are two, because a sign of life must not wait for an upload. Their failures do not end the run:
the next `publish` raises them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from paceline.errors import UserError
from paceline.messages import Send, Warn
from paceline.storage.files import to_log
from paceline.storage.lease import BEAT_EVERY_S
from paceline.storage.lock import LeaseLost
from paceline.storage.remote import RemoteRun

PUBLISH_EVERY_S = 30.0
BUSY_SHARE = 20
"""Uploads in the background take at most this fraction of the time."""


class Keeper:
    """Keeps the lease of a remote run alive, and its remote side up to date, until `stop`."""

    def __init__(self, run: RemoteRun, send: Send) -> None:
        self._run = run
        self._send = send
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._beat, daemon=True),
            threading.Thread(target=self._publish, daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until the threads have ended."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _beat(self) -> None:
        self._repeat(self._run.beat, lambda took_s: BEAT_EVERY_S)

    def _publish(self) -> None:
        self._repeat(
            self._run.publish_in_background,
            lambda took_s: max(PUBLISH_EVERY_S, BUSY_SHARE * took_s),
        )

    def _repeat(self, action: Callable[[], None], pause_s: Callable[[float], float]) -> None:
        failed, took_s = False, 0.0
        while not self._ended.wait(pause_s(took_s)):
            began = time.monotonic()
            try:
                action()
                failed = False
            except LeaseLost:
                return
            except (UserError, OSError) as error:
                to_log(error)
                if not failed:
                    self._send(Warn(str(error)))
                failed = True
            took_s = time.monotonic() - began
