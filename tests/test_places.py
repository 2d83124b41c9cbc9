"""The table of places, the restart policy and the watchdog: no process is started here."""

from __future__ import annotations

from importlib import import_module
from typing import Any, get_args

import pytest

from paceline.config.experiment import Experiment
from paceline.config.job import Job, Place, Ray
from paceline.config.places import PLACES, PlaceName
from paceline.errors import AddressTaken, UserError
from paceline.messages import Message, Warn
from paceline.places.failures import WorkerFailed
from paceline.places.restarts import ADDRESS_TRIES, run_with_restarts
from paceline.places.watchdog import Watchdog

TABLE = [
    # place, all on one machine, restarted by a platform, parameter servers, engine
    ("local", True, False, True, "collective"),
    ("tf_config", False, True, True, "collective"),
    ("ray", False, False, False, "object_store"),
    ("spark", False, False, False, "collective"),
]


@pytest.mark.parametrize(("name", "one_machine", "platform", "servers", "engine"), TABLE)
def test_every_place_has_its_properties_and_a_module_that_launches(
    name: PlaceName, one_machine: bool, platform: bool, servers: bool, engine: str
) -> None:
    kind = PLACES[name]
    assert (kind.one_machine, kind.platform_restarts, kind.parameter_servers) == (
        one_machine,
        platform,
        servers,
    )
    assert Job(Experiment(), Place(on=name)).engine == engine
    assert callable(import_module(kind.module).launch)


def test_the_flag_on_and_this_file_know_every_place() -> None:
    assert get_args(PlaceName) == ("auto", *PLACES)
    assert [row[0] for row in TABLE] == list(PLACES)


def test_ray_has_two_exchanges() -> None:
    place = Place(on="ray", ray=Ray(exchange="collective"))
    assert Job(Experiment(), place).engine == "collective"


@pytest.mark.parametrize("name", ["ray", "spark"])
def test_parameter_servers_are_refused_where_a_place_has_none(name: PlaceName) -> None:
    with pytest.raises(UserError, match="ps is 1"):
        Job(Experiment(), Place(on=name, ps=1))


class Attempts:
    """Runs that end as listed: "saved" and "failed" by a lost worker, "taken", or "done"."""

    def __init__(self, *ends: str) -> None:
        self._ends = iter(ends)
        self.workers: list[int] = []

    def __call__(self, workers: int) -> dict[str, Any]:
        self.workers.append(workers)
        end = next(self._ends)
        if end == "taken":
            raise AddressTaken("cannot listen at 127.0.0.1:1")
        if end != "done":
            failure = WorkerFailed("worker 1", "killed by SIGKILL", None)
            failure.saved = end == "saved"
            raise failure
        return {"finished": True}


CASES = [
    # max_restarts, min_workers, ends of the attempts, workers of the attempts
    (0, 0, ("done",), [4]),
    (1, 0, ("failed", "done"), [4, 4]),
    (1, 0, ("failed", "saved", "saved", "done"), [4, 4, 4, 4]),
    (0, 0, ("taken", "taken", "done"), [4, 4, 4]),
    (0, 1, ("failed", "failed", "done"), [4, 2, 1]),
    (1, 2, ("failed", "failed", "failed", "done"), [4, 4, 2, 2]),
]


@pytest.mark.parametrize(("max_restarts", "min_workers", "ends", "workers"), CASES)
def test_a_run_restarts_until_it_is_done(
    max_restarts: int, min_workers: int, ends: tuple[str, ...], workers: list[int]
) -> None:
    attempts, heard = Attempts(*ends), list[Message]()
    place = Place(workers=4, max_restarts=max_restarts, min_workers=min_workers)
    assert run_with_restarts(place, attempts, heard.append) == {"finished": True}
    assert attempts.workers == workers
    assert len(heard) == len(ends) - 1
    assert all(isinstance(message, Warn) for message in heard)


@pytest.mark.parametrize(
    ("max_restarts", "min_workers", "ends", "count"),
    [
        (0, 0, ("failed",), 1),
        (1, 0, ("failed", "failed"), 2),
        (1, 0, ("failed", "saved", "failed"), 3),
        (0, 2, ("failed", "failed"), 2),
    ],
)
def test_one_failure_too_many_without_a_new_checkpoint_ends_the_run(
    max_restarts: int, min_workers: int, ends: tuple[str, ...], count: int
) -> None:
    attempts = Attempts(*ends, "done")
    place = Place(workers=4, max_restarts=max_restarts, min_workers=min_workers)
    with pytest.raises(WorkerFailed, match="worker 1 failed: killed by SIGKILL"):
        run_with_restarts(place, attempts, lambda message: None)
    assert len(attempts.workers) == count


def test_ports_are_chosen_again_only_a_few_times() -> None:
    attempts = Attempts(*["taken"] * (ADDRESS_TRIES + 1), "done")
    with pytest.raises(AddressTaken):
        run_with_restarts(Place(), attempts, lambda message: None)
    assert len(attempts.workers) == ADDRESS_TRIES + 1


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
        return self.dog.find_lost([0, 1], [0, 1])


def test_a_worker_that_is_silent_counts_as_lost_even_before_training() -> None:
    watched = Watched()
    watched.pass_time(60.0, alive=(0,), active=(0,))
    assert watched.lost() is None
    assert watched.dog.nearly_lost([0, 1]) == [1]
    watched.pass_time(61.0, alive=(0,), active=(0,))
    assert watched.lost() == (1, "it is stopped or starved: nothing for 60 s")
    assert watched.dog.find_lost([0], [0, 1]) is None, "a process that has ended is not silent"


def test_workers_that_wait_have_the_start_timeout_and_then_the_stall_timeout() -> None:
    watched = Watched()
    watched.pass_time(299.0, alive=(0, 1), active=())
    assert watched.lost() is None
    watched.pass_time(300.0, alive=(0, 1), active=())
    assert watched.lost() == (0, "it makes no progress: nothing for 300 s")
    watched.pass_time(301.0, alive=(0, 1), active=(0, 1))
    watched.dog.training_began()
    watched.pass_time(310.0, alive=(0, 1), active=(0,))
    watched.pass_time(369.0, alive=(0, 1), active=())
    assert watched.lost() is None
    watched.pass_time(370.0, alive=(0, 1), active=())
    assert watched.lost() == (1, "it makes no progress: nothing for 60 s")


def test_of_workers_without_progress_a_silent_one_is_to_blame() -> None:
    watched = Watched()
    watched.dog.training_began()
    watched.pass_time(40.0, alive=(0, 1), active=())
    watched.pass_time(60.0, alive=(0,), active=())
    assert watched.lost() == (1, "it is stopped or starved: nothing for 60 s")


def test_no_worker_is_to_blame_if_the_watcher_itself_was_stopped() -> None:
    watched = Watched()
    watched.dog.training_began()
    watched.now = 1000.0
    watched.dog.look()
    assert watched.lost() is None
