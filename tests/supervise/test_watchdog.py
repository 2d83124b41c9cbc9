"""The watchdog, with a clock that is set by hand."""

import pytest

from paceline.job import Place
from paceline.supervise.watchdog import WORKING_LIMITS, Watchdog


class Watched:
    """A watchdog of two workers with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        place = Place(start_timeout=300.0, stall_timeout=60.0)
        self.dog = Watchdog(place, 2, lambda: self.now)

    def pass_time(self, until: float, alive: tuple[int, ...], active: tuple[int, ...]) -> None:
        while self.now < until:
            self.now += 1.0
            self.dog.look()
            for worker in alive:
                self.dog.heard(worker)
            for worker in active:
                self.dog.progressed(worker)

    def lost(self) -> tuple[int, str] | None:
        return self.dog.find_lost([0, 1])


def test_a_worker_that_is_silent_counts_as_lost_even_before_training() -> None:
    watched = Watched()
    watched.pass_time(60.0, alive=(0,), active=(0,))
    assert watched.lost() is None
    assert watched.dog.silent(30.0) == [1]
    watched.pass_time(61.0, alive=(0,), active=(0,))
    assert watched.lost() == (1, "it is stopped or starved: nothing for 60 s")
    watched.dog.ended(1)
    assert watched.lost() is None, "a process that has ended is not silent"


def test_workers_that_wait_have_the_start_timeout_and_then_the_stall_timeout() -> None:
    watched = Watched()
    watched.pass_time(299.0, alive=(0, 1), active=())
    assert watched.lost() is None
    watched.pass_time(300.0, alive=(0, 1), active=())
    assert watched.lost() == (0, "it makes no progress: nothing for 300 s")
    watched.pass_time(301.0, alive=(0, 1), active=(0, 1))
    watched.dog.began = True
    watched.pass_time(310.0, alive=(0, 1), active=(0,))
    watched.pass_time(369.0, alive=(0, 1), active=())
    assert watched.lost() is None
    watched.pass_time(370.0, alive=(0, 1), active=())
    assert watched.lost() == (1, "it makes no progress: nothing for 60 s")


def test_of_workers_without_progress_a_silent_one_is_to_blame() -> None:
    watched = Watched()
    watched.dog.began = True
    watched.pass_time(40.0, alive=(0, 1), active=())
    watched.pass_time(60.0, alive=(0,), active=())
    assert watched.lost() == (1, "it is stopped or starved: nothing for 60 s")


def test_no_worker_is_to_blame_if_the_watcher_itself_was_stopped() -> None:
    watched = Watched()
    watched.dog.began = True
    watched.now = 1000.0
    watched.dog.look()
    assert watched.lost() is None


@pytest.mark.parametrize(("share", "lost_after"), [(0.5, None), (0.01, 60)])
def test_a_worker_that_computes_is_told_from_one_that_hangs(
    share: float, lost_after: int | None
) -> None:
    watched = Watched()
    watched.dog.began = True
    for second in range(1, 200):
        watched.pass_time(second, alive=(0, 1), active=())
        watched.dog.worked(0, 5.0 + share * second, 900.0 + second)
        watched.dog.worked(1, 5.0, 700.0 + second)
        if watched.lost():
            break
    assert (second if watched.lost() else None) == lost_after


def test_a_worker_that_is_busy_with_nothing_is_lost_in_the_end() -> None:
    watched = Watched()
    watched.dog.began = True
    limit = WORKING_LIMITS * 60 + 60
    while not watched.lost() and watched.now <= limit + 1:
        watched.pass_time(watched.now + 1, alive=(0, 1), active=())
        watched.dog.worked(0, 5.0 + watched.now, watched.now)
    assert watched.lost()
    assert watched.now >= limit - 2


def test_messages_that_waited_for_a_slow_listener_do_not_make_an_idle_worker_busy() -> None:
    watched = Watched()
    watched.dog.began = True
    for second in range(1, 62):
        watched.pass_time(second, alive=(0, 1), active=())
        if second % 5 == 0:  # five messages are read within a millisecond
            for sent in range(second - 4, second + 1):
                watched.now += 0.001
                watched.dog.worked(0, 5.0 + 0.005 * sent, float(sent))
    assert watched.lost()
