"""The watchdog: which worker is silent, and which makes no progress. It ends nothing itself.

A live worker sends `Alive` every second, whatever else it does. Every other message is progress.
So is work that `Alive` reports: one long step is not a hang. But only for a time: a worker may also
be busy with nothing.
"""

import time
from collections.abc import Callable, Sequence

from paceline.job import Place

SILENT_S = 10.0
"""A worker that is silent for longer is stopped, or gets no processor time."""
WORKING_SHARE = 0.05
"""A worker works if it uses more of a core than this. One that waits for others uses 0.5 %."""
NO_PROGRESS = "it makes no progress"
WORKING_LIMITS = 20
"""Work alone is progress for at most this many timeouts."""


class Watchdog:
    """Notes when each worker was heard and made progress, and applies the limits of the place."""

    def __init__(
        self, place: Place, num_workers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._place = place
        self.began = False
        """Whether training has begun."""
        self._num_workers = num_workers
        self._ended: set[int] = set()
        self.reset()

    def reset(self) -> None:
        """Begin to measure now, for every worker."""
        self._looked = self._clock()
        self._heard = [self._looked] * self._num_workers
        self._progress, self._messages = list(self._heard), list(self._heard)
        self._work = [(0.0, 0.0)] * self._num_workers

    def look(self) -> None:
        """Blame no worker if this process itself was stopped, or its listener was slow."""
        if self._clock() - self._looked > SILENT_S:
            self.reset()
        self._looked = self._clock()

    def heard(self, worker: int) -> None:
        self._heard[worker] = self._clock()
        self._ended.discard(worker)

    def ended(self, worker: int) -> None:
        """Expect nothing more from a worker, unless it is started again."""
        self._ended.add(worker)

    def progressed(self, worker: int) -> None:
        self._progress[worker] = self._messages[worker] = self._clock()

    def worked(self, worker: int, work: float, clock: float) -> None:
        """Note the work of a worker so far, in seconds, and its own clock.

        Messages that waited for a slow listener arrive together: the time between them is not the
        time in which the work was done.
        """
        now, (then, before) = self._clock(), self._work[worker]
        is_busy = before > 0 and work - before > WORKING_SHARE * (clock - then)
        if is_busy and now - self._messages[worker] < WORKING_LIMITS * self._limit:
            self._progress[worker] = now
        self._work[worker] = clock, work

    @property
    def _limit(self) -> float:
        return self._place.stall_timeout if self.began else self._place.start_timeout

    def running(self) -> list[int]:
        """Return the workers from which more is expected."""
        return [worker for worker in range(self._num_workers) if worker not in self._ended]

    def silent(self, seconds: float) -> list[int]:
        """Return the running workers that were not heard for this long."""
        now = self._clock()
        return [worker for worker in self.running() if now - self._heard[worker] > seconds]

    def find_lost(self, trainers: Sequence[int]) -> tuple[int, str] | None:
        """Return a lost worker and the reason.

        A silent worker is lost in every phase. If no worker makes progress, a silent one is to
        blame, or else the one of `trainers` that made progress longest ago: the others wait for it.
        """
        if silent := self.silent(self._place.stall_timeout):
            return silent[0], stopped(self._place.stall_timeout)
        if self._clock() - max(self._progress) < self._limit:
            return None
        if silent := self.silent(min(SILENT_S, self._limit / 2)):
            return silent[0], stopped(self._limit)
        last = min(trainers, key=self._progress.__getitem__, default=0)
        return last, f"{NO_PROGRESS}: nothing for {self._limit:.0f} s"


def stopped(seconds: float) -> str:
    """Return the reason for a worker that was silent for this long."""
    return f"it is stopped or starved: nothing for {seconds:.0f} s"
