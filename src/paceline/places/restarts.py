"""The restart policy: how often lost workers are started again, and with how many workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.config.job import Place
from paceline.errors import AddressTaken
from paceline.messages import Send, Warn
from paceline.places.failures import WorkerFailed

ADDRESS_TRIES = 5


class RestartBudget:
    """The restarts that are left. Each new checkpoint refills it."""

    def __init__(self, max_restarts: int) -> None:
        self._max = max_restarts
        self._used = 0

    def refill(self) -> None:
        self._used = 0

    def spend(self) -> bool:
        """Use one restart; return False if none is left."""
        self._used += 1
        return self._used <= self._max


def run_with_restarts(
    place: Place, attempt: Callable[[int], dict[str, Any]], listen: Send
) -> dict[str, Any]:
    """Call `attempt` with the number of workers until it succeeds; return its result.

    An attempt that fails once too often without a new checkpoint raises WorkerFailed, unless half
    as many workers are still enough (--min-workers).
    """
    budget = RestartBudget(place.max_restarts)
    workers = place.workers
    address_tries = 0
    while True:
        try:
            return attempt(workers)
        except AddressTaken as error:
            address_tries += 1
            if address_tries > ADDRESS_TRIES:
                raise
            listen(Warn(f"{error}; starting again with other ports"))
        except WorkerFailed as failure:
            if failure.saved:
                budget.refill()
            if not budget.spend():
                if not place.min_workers or workers // 2 < place.min_workers:
                    raise
                workers //= 2
                budget.refill()
            listen(Warn(f"{failure}; starting {workers} again from the last checkpoint"))
