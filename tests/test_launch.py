"""A command from its job to its result, with workers that are not processes."""

import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from fake_workers import UNTIL_SIGNAL, FakePlace
from paceline import launch as launching
from paceline.errors import UserError, WorkerFailed
from paceline.experiment.experiment import Experiment
from paceline.job import PLACES, Job, Place, PlaceName
from paceline.launch import find_place, launch
from paceline.messages import Crash, Done, Error, Message, Saved, Start, Warn

DONE = Done({"finished": True})
STARTED = Start(total_steps=100, steps_per_epoch=10)
SUCCEEDS = (STARTED, DONE, 0)
FAILS = (STARTED, Crash("RuntimeError: broken"), 1)
TABLE = [
    # place, all on one machine, restarted by a platform, engine
    ("local", True, False, "collective"),
    ("tf_config", False, True, "collective"),
    ("slurm", False, True, "collective"),
    ("kubernetes", False, True, "collective"),
    ("ray", False, False, "ray"),
    ("spark", False, False, "collective"),
]


@pytest.mark.parametrize(("name", "one_machine", "platform", "engine"), TABLE)
def test_every_place_has_its_properties_and_a_module_that_opens_it(
    name: PlaceName, one_machine: bool, platform: bool, engine: str
) -> None:
    kind = PLACES[name]
    assert (kind.one_machine, kind.platform_restarts) == (one_machine, platform)
    assert Job(Experiment(), Place(on=name)).engine == engine
    assert callable(import_module(kind.module).open_place)
    if not (one_machine or platform):
        with pytest.raises(UserError, match="ps is 1"):
            Job(Experiment(), Place(on=name, ps=1))


def test_the_flag_on_and_this_file_know_every_place() -> None:
    assert get_args(PlaceName) == ("auto", *PLACES)
    assert [row[0] for row in TABLE] == list(PLACES)


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


@pytest.mark.parametrize("error", [StopIteration(), ValueError("an action of the caller")])
def test_a_listener_that_raises_stops_the_workers_after_a_checkpoint(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(monkeypatch, Place(), (STARTED, Saved(1), UNTIL_SIGNAL))

    def listen(message: Message) -> None:
        if isinstance(message, Saved):
            raise error

    if isinstance(error, StopIteration):
        assert launch(command.place.job, listen) == {"finished": False}
    else:
        with pytest.raises(ValueError, match="an action of the caller"):
            launch(command.place.job, listen)
