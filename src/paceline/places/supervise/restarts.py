"""The restart policy: how often lost workers are started again, and with how many workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from paceline.errors import AddressTaken, PassingFault, UserError
from paceline.job import Place
from paceline.messages import Message, Result, Saved, Send, Start, Warn
from paceline.places.supervise.failures import RoomForFewer, WorkerFailed

ADDRESS_TRIES = 5

Attempt = Callable[[int, Send], dict[str, Any]]
"""Runs so many workers to their end, and passes their messages on; returns the result."""


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

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next try for something to pass: 2, 8, 32, 60 ..."""
        return min(60.0, 2.0 * 4.0 ** (self._used - 1))


class _AllAgain(Exception):
    """Fewer workers than wanted have saved a checkpoint, and end to continue as all of them."""


class _Return:
    """When an attempt with fewer workers ends at a checkpoint, so that all can take part again.

    It is the next checkpoint. Each time that all of them fail again before one, twice as many
    checkpoints are awaited: a worker that is lost for good must not take all the time.
    """

    def __init__(self, wanted: int, has_room: Callable[[int], bool], listen: Send) -> None:
        self._wanted = wanted
        self._has_room = has_room
        self._listen = listen
        self._awaited = 1

    def listener(self, workers: int) -> Send:
        """Return the listener of an attempt; it raises _AllAgain after a checkpoint."""
        saved, total_steps, is_ending = 0, 0, False

        def listen(message: Message) -> None:
            nonlocal saved, total_steps, is_ending
            if not (is_ending and isinstance(message, Result)):  # it is not the run's
                self._listen(message)
            if isinstance(message, Start):
                total_steps = message.total_steps
            if not isinstance(message, Saved) or workers == self._wanted or is_ending:
                return
            saved += 1
            if message.step < total_steps and saved >= self._awaited:
                is_ending = self._has_room(self._wanted)
                if is_ending:
                    raise _AllAgain

        return listen

    def tried(self) -> None:
        """All workers are started again."""
        self._awaited *= 2

    def succeeded(self) -> None:
        """All workers together have saved a checkpoint."""
        self._awaited = 1


class _Restarts:
    """Decides after each failed attempt whether there is another one, and with how many workers."""

    def __init__(self, place: Place, has_room: Callable[[int], bool], listen: Send) -> None:
        self.workers = place.workers
        self.back = _Return(place.workers, has_room, listen)
        self._place = place
        self._listen = listen
        self._budget = RestartBudget(place.max_restarts)
        self._address_tries = 0
        self._started = False

    def take_all(self) -> None:
        wanted = self._place.workers
        self._listen(Warn(f"continuing with {wanted} workers again, no longer {self.workers}"))
        self.workers = wanted
        self.back.tried()

    def take_fewer(self, fewer: RoomForFewer) -> None:
        self.workers = fewer.workers
        self._listen(Warn(f"{fewer}; continuing with {self.workers}"))

    def forgives_address(self, error: AddressTaken) -> bool:
        self._address_tries += 1
        if self._address_tries > ADDRESS_TRIES:
            return False
        self._listen(Warn(f"{error}; starting again with other ports"))
        return True

    def forgives_error(self, error: UserError) -> bool:
        """A fault that may pass is forgiven, after a pause that grows.

        So is an error that a person could correct, if this command had trained before: then
        nothing that the person gave is wrong.
        """
        if isinstance(error, PassingFault) and error.saved:
            self._budget.refill()
        worked_before = self._started and not error.started
        self._started |= error.started
        if not (isinstance(error, PassingFault) or worked_before) or not self._budget.spend():
            return False
        self._listen(Warn(f"{error}; trying again in {self._budget.pause_s:.0f} s"))
        time.sleep(self._budget.pause_s)
        return True

    def forgives_loss(self, failure: WorkerFailed) -> bool:
        """A lost worker is forgiven, or else one worker fewer is enough (--min-workers)."""
        self._started |= failure.started
        if failure.saved:
            self._budget.refill()
            if self.workers == self._place.workers:
                self.back.succeeded()
        if not self._budget.spend():
            if not self._place.min_workers or self.workers <= self._place.min_workers:
                return False
            self.workers -= 1
            self._budget.refill()
        self._listen(Warn(f"{failure}; starting {self.workers} again from the last checkpoint"))
        return True


def run_with_restarts(
    place: Place,
    attempt: Attempt,
    listen: Send,
    has_room: Callable[[int], bool] = lambda workers: True,
) -> dict[str, Any]:
    """Call `attempt` with the number of workers until it succeeds; return its result.

    Raises the error of the last attempt. After attempts with fewer workers, all take part again
    from the next checkpoint on, if `has_room` says that the place has room for them.
    """
    restarts = _Restarts(place, has_room, listen)
    while True:
        try:
            return attempt(restarts.workers, restarts.back.listener(restarts.workers))
        except _AllAgain:
            restarts.take_all()
        except RoomForFewer as fewer:
            restarts.take_fewer(fewer)
        except AddressTaken as error:
            if not restarts.forgives_address(error):
                raise
        except UserError as error:
            if not restarts.forgives_error(error):
                raise
        except WorkerFailed as failure:
            if not restarts.forgives_loss(failure):
                raise
