"""The table of places, the restart policy and the watchdog: no process is started here."""

from __future__ import annotations

import re
import time
from importlib import import_module
from typing import Any, get_args
from unittest import mock

import pytest

from paceline.errors import AddressTaken, PassingFault, UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Job, Place, Ray
from paceline.messages import Message, Result, Saved, Send, Start, Warn
from paceline.place_kinds import PLACES, PlaceName
from paceline.places.supervise import restarts
from paceline.places.supervise.failures import RoomForFewer, WorkerFailed
from paceline.places.supervise.restarts import ADDRESS_TRIES, run_with_restarts
from paceline.places.supervise.watchdog import WORKING_LIMITS, Watchdog

TABLE = [
    # place, all on one machine, restarted by a platform, parameter servers, engine
    ("local", True, False, True, "collective"),
    ("tf_config", False, True, True, "collective"),
    ("slurm", False, True, True, "collective"),
    ("kubernetes", False, True, True, "collective"),
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
    """Runs that end as listed: "saved" and "failed" by a lost worker, "taken", "room for N" or
    "done", after the checkpoints whose number comes before, as in "2 failed"."""

    def __init__(self, *ends: str) -> None:
        self._ends = iter(ends)
        self.workers: list[int] = []

    def __call__(self, workers: int, listen: Send) -> dict[str, Any]:
        self.workers.append(workers)
        *saves, end = re.split(r"(?<=\d) ", next(self._ends))
        listen(Start(total_steps=100, steps_per_epoch=10))
        for step in range(sum(map(int, saves))):
            try:
                listen(Saved(step + 1))
            except Exception:  # as a group does: all save and end, then it raises that
                listen(Result({"finished": False}))
                raise
        if end.startswith("room for"):
            raise RoomForFewer(int(end.split()[-1]), "4 workers need 4 slots, there are 2")
        if end == "taken":
            raise AddressTaken("cannot listen at 127.0.0.1:1")
        if end in ("passing", "data gone"):
            fault = (
                PassingFault("cannot read a.jpg") if end == "passing" else UserError("no folder")
            )
            fault.started = False
            raise fault
        if end == "diverged":
            diverged = UserError("the loss is nan")
            diverged.started = True
            raise diverged
        if end != "done":
            failure = WorkerFailed("worker 1", "killed by SIGKILL", None)
            failure.saved, failure.started = end == "saved", True
            raise failure
        return {"finished": True}


CASES = [
    # max_restarts, min_workers, ends of the attempts, workers of the attempts
    (0, 0, ("done",), [4]),
    (1, 0, ("failed", "done"), [4, 4]),
    (1, 0, ("failed", "saved", "saved", "done"), [4, 4, 4, 4]),
    (0, 0, ("taken", "taken", "done"), [4, 4, 4]),
    (0, 1, ("failed", "failed", "failed", "done"), [4, 3, 2, 1]),
    (1, 3, ("failed", "failed", "failed", "done"), [4, 4, 3, 3]),
]


@pytest.mark.parametrize(("max_restarts", "min_workers", "ends", "workers"), CASES)
def test_a_run_restarts_until_it_is_done(
    max_restarts: int, min_workers: int, ends: tuple[str, ...], workers: list[int]
) -> None:
    attempts, heard = Attempts(*ends), list[Message]()
    place = Place(workers=4, max_restarts=max_restarts, min_workers=min_workers)
    assert run_with_restarts(place, attempts, heard.append) == {"finished": True}
    assert attempts.workers == workers
    warnings = [message for message in heard if isinstance(message, Warn)]
    assert len(warnings) == len(ends) - 1


@pytest.mark.parametrize(
    ("ends", "workers"),
    [
        (("failed", "1 failed", "done"), [4, 3, 4]),
        (("failed", "done"), [4, 3]),
        (("failed", "3 done", "failed", "1 failed", "3 done", "done"), [4, 3, 4, 3, 2, 4]),
        (("room for 2", "1 failed", "done"), [4, 2, 4]),
    ],
    ids=["at the next checkpoint", "no checkpoint", "twice as long after a failure", "no room"],
)
def test_after_fewer_workers_all_take_part_again_at_a_checkpoint(
    ends: tuple[str, ...], workers: list[int]
) -> None:
    attempts, heard = Attempts(*ends), list[Message]()
    place = Place(workers=4, max_restarts=0, min_workers=1)
    assert run_with_restarts(place, attempts, heard.append) == {"finished": True}
    assert attempts.workers == workers
    assert not any(isinstance(message, Result) for message in heard), "these are not the run's"
    returns = [m for m in heard if isinstance(m, Warn) and "4 workers again" in m.text]
    assert len(returns) == workers[1:].count(4)


def test_workers_stay_fewer_where_the_place_has_no_room() -> None:
    attempts = Attempts("failed", "5 done")
    place = Place(workers=4, max_restarts=0, min_workers=2)
    run_with_restarts(place, attempts, lambda message: None, has_room=lambda workers: False)
    assert attempts.workers == [4, 3]


@pytest.mark.parametrize(
    ("max_restarts", "min_workers", "ends", "count"),
    [
        (0, 0, ("failed",), 1),
        (1, 0, ("failed", "failed"), 2),
        (1, 0, ("failed", "saved", "failed"), 3),
        (0, 3, ("failed", "failed"), 2),
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


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time here."""
    found: list[float] = []
    monkeypatch.setattr(restarts, "time", mock.Mock(wraps=time, sleep=found.append))
    return found


@pytest.mark.parametrize(
    ("ends", "waited"),
    [
        (("passing", "passing", "passing", "done"), [2.0, 8.0, 32.0]),
        (("failed", "data gone", "done"), [8.0]),
        (("saved", "passing", "saved", "passing", "done"), [8.0, 8.0]),
    ],
)
def test_a_fault_that_may_pass_is_tried_again_after_pauses_that_grow(
    ends: tuple[str, ...], waited: list[float], pauses: list[float]
) -> None:
    heard = list[Message]()
    assert run_with_restarts(Place(), Attempts(*ends), heard.append) == {"finished": True}
    assert pauses == waited
    assert sum("trying again in" in str(message) for message in heard) == len(waited)


@pytest.mark.parametrize(
    ("ends", "count"),
    [
        (("passing",) * 4, 4),  # lasting
        (("data gone",), 1),  # at the first start: a person gave the wrong folder
        (("failed", "diverged"), 2),  # it had trained: the settings are wrong
        (("failed", "data gone", "data gone", "data gone"), 4),
    ],
)
def test_only_a_lasting_fault_ends_the_run_with_its_reason(
    ends: tuple[str, ...], count: int, pauses: list[float]
) -> None:
    attempts = Attempts(*ends, "done")
    with pytest.raises(UserError, match=r"cannot read a\.jpg|no folder|the loss is nan"):
        run_with_restarts(Place(), attempts, lambda message: None)
    assert len(attempts.workers) == count


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


@pytest.mark.parametrize(("share", "lost_after"), [(0.5, None), (0.01, 60)])
def test_a_worker_that_computes_is_told_from_one_that_hangs(
    share: float, lost_after: int | None
) -> None:
    watched = Watched()
    watched.dog.training_began()
    for second in range(1, 200):
        watched.pass_time(second, alive=(0, 1), active=())
        watched.dog.worked(0, 5.0 + share * second)
        watched.dog.worked(1, 5.0)
        if watched.lost():
            break
    assert (second if watched.lost() else None) == lost_after


def test_a_worker_that_is_busy_with_nothing_is_lost_in_the_end() -> None:
    watched = Watched()
    watched.dog.training_began()
    limit = WORKING_LIMITS * 60 + 60
    while not watched.lost() and watched.now <= limit + 1:
        watched.pass_time(watched.now + 1, alive=(0, 1), active=())
        watched.dog.worked(0, 5.0 + watched.now)
    assert watched.lost()
    assert watched.now >= limit - 2
