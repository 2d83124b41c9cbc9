"""A task that a platform started: what it refuses, and what it leaves to the platform."""

from __future__ import annotations

import threading

import pytest

from paceline.errors import Ended, PassingFault, UserError, WorkerFailed
from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job, Place
from paceline.places import platform_task
from paceline.places.platform_task import build_cluster, open_task
from paceline.supervise.interface import OpenPlace

TWO = Cluster(("127.0.0.1:1", "127.0.0.1:2"), 0)


def task(place: Place, cluster: Cluster) -> OpenPlace:
    return open_task(Job(Experiment(), place), cluster, "TF_CONFIG", lambda message: None)


def test_with_parameter_servers_the_first_task_leads_and_the_last_serve() -> None:
    tasks = ["a:1", "b:1", "c:1"]
    roles = [build_cluster(tasks, task, 1).name for task in range(3)]
    assert roles == ["chief", "worker 0", "ps 0"]
    with pytest.raises(UserError, match="start 4 tasks or more"):
        build_cluster(tasks, 0, 2)


def test_numbers_that_contradict_the_platform_are_refused() -> None:
    for place in (Place(), Place(workers=2)):
        assert task(place, TWO).job.place.workers == 2
    with pytest.raises(UserError, match="ps is 1, but the cluster of TF_CONFIG has 0"):
        task(Place(ps=1), TWO)


def test_a_passing_fault_of_a_platforms_task_is_left_to_the_platform() -> None:
    """Exit code 2 means that only a person can correct it: platforms do not restart it."""
    with (
        pytest.raises(Ended, match="cannot read shard-3") as ended,
        task(Place(), Cluster()).workers(1),
    ):
        raise PassingFault("cannot read shard-3")
    assert ended.value.exit_code == 1
    assert not isinstance(ended.value, UserError)


def test_a_lost_worker_names_the_tasks_that_do_not_answer() -> None:
    with (
        pytest.raises(WorkerFailed, match=r"it ended; no answer from 127\.0\.0\.1:2$"),
        task(Place(), TWO).workers(1),
    ):
        raise WorkerFailed("worker 0", "it ended", None)


def test_tasks_that_do_not_answer_are_named_until_all_have_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, heard = iter([["127.0.0.1:2"], ["127.0.0.1:2"], []]), list[str]()
    monkeypatch.setattr(platform_task, "WAITING_EVERY_S", 0.0)
    monkeypatch.setattr(platform_task, "find_silent", lambda addresses: next(answers))
    names = platform_task._names_of_others(TWO)
    platform_task._warn_while_waiting(
        names, lambda message: heard.append(message.text), threading.Event()
    )
    assert heard == ["waiting for worker 1 at 127.0.0.1:2"] * 2
