"""Decides after a failure whether workers are started again, and how many.

It starts nothing and waits for nothing: `launch` does.
"""

from dataclasses import dataclass, replace

from paceline.errors import AddressTaken, PassingFault, UserError, WorkerFailed
from paceline.job import Place

ADDRESS_TRIES = 5


@dataclass(frozen=True)
class Attempt:
    """One start of the workers, and what matters of those before."""

    workers: int
    warning: str = ""
    """Why there was another attempt before."""
    pause_s: float = 0.0
    """How long to wait before it."""
    restarts: int = 0
    """Restarts without a new checkpoint in between."""
    address_tries: int = 0
    trained: bool = False
    """Whether an earlier attempt has begun to train."""


def decide(last: Attempt, place: Place, failure: UserError | WorkerFailed) -> Attempt | None:
    """Return the next attempt after a failure; None means that the command gives up."""
    if place.kind.platform_restarts:
        return None
    if isinstance(failure, AddressTaken):
        warning, tries = f"{failure}; starting again with other ports", last.address_tries + 1
        again = replace(last, warning=warning, pause_s=0.0, address_tries=tries)
        return again if tries <= ADDRESS_TRIES else None
    restarts = 1 if failure.saved else last.restarts + 1
    again = replace(last, restarts=restarts, trained=last.trained or failure.started)
    if isinstance(failure, UserError):
        # what a person gave is not wrong if this command had trained before
        passes = isinstance(failure, PassingFault) or (last.trained and not failure.started)
        if not passes or restarts > place.max_restarts:
            return None
        pause_s = min(60.0, 2.0 * 4.0 ** (restarts - 1))
        warning = f"{failure}; trying again in {pause_s:.0f} s"
        return replace(again, warning=warning, pause_s=pause_s)
    if restarts > place.max_restarts:  # starting as many again does not help
        if not place.min_workers or last.workers <= place.min_workers:
            return None
        again = replace(again, restarts=0, workers=last.workers - 1)
    warning = f"{failure}; starting {again.workers} again from the last checkpoint"
    return replace(again, warning=warning, pause_s=0.0)
