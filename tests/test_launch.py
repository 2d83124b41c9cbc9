"""A command from its job to its result, with workers that are no processes."""

from __future__ import annotations

import signal
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from fake_workers import UNTIL_SIGNAL, FakePlace
from paceline import launch as launching
from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Job, Place, Ray
from paceline.launch import find_place, launch
from paceline.messages import Crash, Error, Message, Result, Saved, Start, Warn
from paceline.place_kinds import PLACES, PlaceName
from paceline.places.supervise.failures import RoomForFewer, WorkerFailed

DONE = Result({"finished": True})
STARTED = Start(total_steps=100, steps_per_epoch=10)
SUCCEEDS = (STARTED, DONE, 0)
FAILS = (STARTED, Crash("RuntimeError: broken"), 1)
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
def test_every_place_has_its_properties_and_a_module_that_opens_it(
    name: PlaceName, one_machine: bool, platform: bool, servers: bool, engine: str
) -> None:
    kind = PLACES[name]
    properties = (kind.one_machine, kind.platform_restarts, kind.parameter_servers)
    assert properties == (one_machine, platform, servers)
    assert Job(Experiment(), Place(on=name)).engine == engine
    assert callable(import_module(kind.module).open_place)


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


STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}
POD = {"JOB_COMPLETION_INDEX": "0", "PACELINE_SERVICE": "trainer"}


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "local"),
        ({"TF_CONFIG": ""}, "local"),
        (STEP | {"TF_CONFIG": "{}"}, "tf_config"),
        (POD, "kubernetes"),
        ({"JOB_COMPLETION_INDEX": "0"}, "local"),
        (STEP, "slurm"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, "local"),  # an interactive shell
        ({"SLURM_JOB_ID": "42", "SLURM_PROCID": "0"}, "local"),  # a batch script
    ],
)
def test_the_place_is_found_from_the_environment(environment: dict[str, str], name: str) -> None:
    assert find_place(environment) == name


class Command:
    """Launches a job whose attempts go as listed, and notes what it says and how long it waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Place, *attempts: Any) -> None:
        self.heard, self.pauses = list[Message](), list[float]()
        self.place = FakePlace(Job(Experiment(replicas=4), place), *attempts)
        monkeypatch.setattr(launching, "import_module", lambda name: self.place)
        clock = SimpleNamespace(sleep=self.pauses.append, monotonic=time.monotonic)
        monkeypatch.setattr(launching, "time", clock)

    def run(self) -> dict[str, Any]:
        return launch(self.place.job, self.heard.append)

    def warnings(self) -> list[str]:
        return [message.text for message in self.heard if isinstance(message, Warn)]


def test_a_job_is_started_again_until_it_has_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    passing = (STARTED, Error("cannot read a.jpg", passing=True), 2)
    command = Command(monkeypatch, Place(), FAILS, passing, SUCCEEDS)
    assert command.run() == {"finished": True}
    assert command.pauses == [0.0, 8.0]
    assert command.warnings() == [
        "worker 0 failed: RuntimeError: broken; starting 1 again from the last checkpoint",
        "cannot read a.jpg; trying again in 8 s",
    ]
    assert command.heard[-1] == DONE


def test_what_cannot_be_repaired_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(max_restarts=0)
    with pytest.raises(WorkerFailed, match="worker 0 failed: RuntimeError: broken"):
        Command(monkeypatch, place, FAILS).run()
    with pytest.raises(UserError, match="no folder") as error:
        Command(monkeypatch, place, (STARTED, Error("no folder"), 2)).run()
    assert error.value.started
    with pytest.raises(WorkerFailed, match="killed by SIGKILL"):
        Command(monkeypatch, place, (STARTED, -signal.SIGKILL)).run()


LEAVES_AFTER_1 = (STARTED, Saved(1), UNTIL_SIGNAL)
LEAVES_AFTER_2 = (STARTED, Saved(1), Saved(2), UNTIL_SIGNAL)
FAILS_AFTER_1 = (STARTED, Saved(1), *FAILS[1:])
TWICE = (FAILS, FAILS_AFTER_1, LEAVES_AFTER_2)
NO_ROOM = RoomForFewer(2, "4 workers need 4 slots, there are 2")


@pytest.mark.parametrize(
    ("attempts", "workers"),
    [
        ((FAILS, LEAVES_AFTER_1, SUCCEEDS), [4, 3, 4]),
        ((FAILS, SUCCEEDS), [4, 3]),
        (
            (FAILS, LEAVES_AFTER_1, FAILS, FAILS_AFTER_1, LEAVES_AFTER_2, SUCCEEDS),
            [4, 3, 4, 3, 2, 4],
        ),
        ((NO_ROOM, LEAVES_AFTER_1, SUCCEEDS), [4, 2, 4]),
        ((FAILS, (STARTED, Saved(100), DONE, 0)), [4, 3]),
    ],
    ids=["at the next checkpoint", "none", "twice as long after a failure", "no room", "the last"],
)
def test_after_fewer_workers_all_take_part_again_at_a_checkpoint(
    attempts: tuple[Any, ...], workers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(workers=4, max_restarts=0, min_workers=1)
    command = Command(monkeypatch, place, *attempts)
    assert command.run() == {"finished": True}
    assert command.place.counts == workers
    assert [each for each in command.heard if isinstance(each, Result)] == [DONE]
    returns = [text for text in command.warnings() if "4 workers again" in text]
    assert len(returns) == workers[1:].count(4)


def test_workers_stay_fewer_where_the_place_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(workers=4, max_restarts=0, min_workers=2)
    command = Command(monkeypatch, place, FAILS, (STARTED, Saved(1), Saved(2), DONE, 0))
    command.place.room = 3
    command.run()
    assert command.place.counts == [4, 3]


@pytest.mark.parametrize("error", [StopIteration(), ValueError("an action of the caller")])
def test_a_listener_that_raises_stops_the_workers_after_a_checkpoint(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(monkeypatch, Place(), LEAVES_AFTER_1)

    def listen(message: Message) -> None:
        if isinstance(message, Saved):
            raise error

    if isinstance(error, StopIteration):
        assert launch(command.place.job, listen) == {"finished": False}
    else:
        with pytest.raises(ValueError, match="an action of the caller"):
            launch(command.place.job, listen)
