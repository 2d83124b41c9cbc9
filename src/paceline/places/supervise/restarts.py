"""Decides after a failure whether workers are started again, and how many.

It starts nothing and waits for nothing: `launch` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.errors import AddressTaken, PassingFault, UserError
from paceline.job import Place
from paceline.places.supervise.failures import RoomForAll, RoomForFewer, WorkerFailed

ADDRESS_TRIES = 5

Failure = UserError | WorkerFailed | RoomForFewer | RoomForAll
FAILURES = (UserError, WorkerFailed, RoomForFewer, RoomForAll)


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
    checkpoints_apart: int = 1
    """After this many checkpoints with fewer workers, all workers take part again.

    It doubles each time that all of them fail before a checkpoint: a worker that is lost for good
    must not take all the time.
    """


@dataclass(frozen=True)
class Restart:
    """Start the workers again."""

    history: History
    warning: str
    pause_s: float = 0.0


def decide(history: History, place: Place, failure: Failure) -> Restart | None:
    """Return how a command continues after a failure; None means that it gives up."""
    if place.kind.platform_restarts:
        return None
    match failure:
        case RoomForAll():
            return _take_all(history, place)
        case RoomForFewer():
            fewer = replace(history, workers=failure.workers)
            return Restart(fewer, f"{failure}; continuing with {failure.workers}")
        case AddressTaken():
            tries = history.address_tries + 1
            tried = replace(history, address_tries=tries)
            warning = f"{failure}; starting again with other ports"
            return Restart(tried, warning) if tries <= ADDRESS_TRIES else None
        case UserError():
            return _after_error(history, place, failure)
        case WorkerFailed():
            return _after_loss(_after_training(history, place, failure), place, failure)


def _take_all(history: History, place: Place) -> Restart:
    again = replace(history, workers=place.workers, checkpoints_apart=2 * history.checkpoints_apart)
    fewer = history.workers
    return Restart(again, f"continuing with {place.workers} workers again, no longer {fewer}")


def _after_error(history: History, place: Place, error: UserError) -> Restart | None:
    """Try again after a pause that grows, if the error may pass.

    An error that a person could correct may pass too, if this command had trained before it: then
    nothing that the person gave is wrong.
    """
    passes = isinstance(error, PassingFault) or (history.trained and not error.started)
    known = _after_training(history, place, error)
    again = replace(known, restarts=known.restarts + 1)
    if not passes or again.restarts > place.max_restarts:
        return None
    pause_s = min(60.0, 2.0 * 4.0 ** (again.restarts - 1))
    return Restart(again, f"{error}; trying again in {pause_s:.0f} s", pause_s)


def _after_loss(history: History, place: Place, failure: WorkerFailed) -> Restart | None:
    """Start the workers again, or one fewer if that did not help (--min-workers)."""
    again = replace(history, restarts=history.restarts + 1)
    if again.restarts > place.max_restarts:
        if not place.min_workers or history.workers <= place.min_workers:
            return None
        again = replace(history, restarts=0, workers=history.workers - 1)
    return Restart(again, f"{failure}; starting {again.workers} again from the last checkpoint")


def _after_training(history: History, place: Place, failure: UserError | WorkerFailed) -> History:
    """Return the history with what the attempt reached before it failed."""
    history = replace(history, trained=history.trained or failure.started)
    if not failure.saved:
        return history
    had_all = history.workers == place.workers
    apart = 1 if had_all else history.checkpoints_apart
    return replace(history, restarts=0, checkpoints_apart=apart)
