"""Decides after a failure whether workers are started again, and how many.

It starts nothing and waits for nothing: `launch` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.errors import AddressTaken, PassingFault, UserError, WorkerFailed
from paceline.job import Place

ADDRESS_TRIES = 5


@dataclass(frozen=True)
class History:
    """The attempts of a command so far, as far as they matter for the next one."""

    workers: int
    """Number of workers of this attempt."""
    restarts: int = 0
    """Restarts without a new checkpoint in between."""
    address_tries: int = 0
    trained: bool = False
    """Whether an earlier attempt has begun to train."""


@dataclass(frozen=True)
class Restart:
    """Start the workers again."""

    history: History
    warning: str
    pause_s: float = 0.0


def decide(history: History, place: Place, failure: UserError | WorkerFailed) -> Restart | None:
    """Return how a command continues after a failure; None means that it gives up."""
    if place.kind.platform_restarts:
        return None
    if isinstance(failure, AddressTaken):
        tried = replace(history, address_tries=history.address_tries + 1)
        warning = f"{failure}; starting again with other ports"
        return Restart(tried, warning) if tried.address_tries <= ADDRESS_TRIES else None
    trained = history.trained or failure.started
    restarts = 1 if failure.saved else history.restarts + 1
    again = replace(history, restarts=restarts, trained=trained)
    if isinstance(failure, UserError):
        # what a person gave is not wrong if this command had trained before
        passes = isinstance(failure, PassingFault) or (history.trained and not failure.started)
        pause_s = min(60.0, 2.0 * 4.0 ** (restarts - 1))
        warning = f"{failure}; trying again in {pause_s:.0f} s"
        may_try = passes and restarts <= place.max_restarts
        return Restart(again, warning, pause_s) if may_try else None
    if restarts > place.max_restarts:  # starting as many again does not help
        if not place.min_workers or history.workers <= place.min_workers:
            return None
        again = replace(again, restarts=0, workers=history.workers - 1)
    return Restart(again, f"{failure}; starting {again.workers} again from the last checkpoint")
