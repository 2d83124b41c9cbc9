"""A task that a platform started: what it refuses, and what it leaves to the platform."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from helpers import free_addresses
from paceline.errors import Ended, PassingFault, UserError, WorkerFailed
from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job, Place
from paceline.places import platform_task
from paceline.places.platform_task import build_cluster, open_task
from paceline.supervise.interface import OpenPlace
from paceline.supervise.process import LocalWorker

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


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "killed by SIGKILL",
            "worker 0 failed: killed by SIGKILL; no answer from worker 1 at 127.0.0.1:2",
        ),
        (
            "another worker is gone",
            "worker 1 at 127.0.0.1:2 failed: no answer as a worker of Paceline; "
            "worker 0 reports: another worker is gone",
        ),
    ],
)
def test_a_lost_worker_names_the_tasks_that_do_not_answer(
    reason: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform_task, "EXPLAIN_S", 0.1)
    with pytest.raises(WorkerFailed) as failed, task(Place(), TWO).workers(1):
        raise WorkerFailed("worker 0", reason, None)
    assert str(failed.value) == shown


def test_tasks_that_do_not_answer_are_named_until_all_have_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, heard, begun = iter([["127.0.0.1:2"], ["127.0.0.1:2"], []]), list[str](), Event()

    def ask(addresses: list[str]) -> list[str]:
        silent = next(answers)
        if not silent:
            begun.set()
        return silent

    monkeypatch.setattr(platform_task, "WAITING_EVERY_S", 0.0)
    monkeypatch.setattr(platform_task, "find_silent", ask)
    names = platform_task._names_of_others(TWO)
    platform_task._warn_while_waiting(names, lambda message: heard.append(message.text), begun)
    assert heard == ["waiting for worker 1 at 127.0.0.1:2"] * 2


def test_a_task_ends_with_the_reason_of_one_that_cannot_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own worker may wait for minutes: it is killed, whatever it would report later."""
    killed = Event()

    def ask(addresses: list[str]) -> list[str]:
        raise UserError("the worker at 127.0.0.1:2 cannot train: there is no folder data")

    monkeypatch.setattr(platform_task, "WAITING_EVERY_S", 0.0)
    monkeypatch.setattr(platform_task, "find_silent", ask)
    monkeypatch.setattr(LocalWorker, "send_signal", lambda worker, number: killed.set())
    monkeypatch.setattr(platform_task, "tell", lambda address, reason: None)

    def fail_when_killed() -> None:
        with task(Place(), TWO).workers(1):
            assert killed.wait(10.0)
            raise WorkerFailed("worker 0", "killed by SIGKILL", None)

    with pytest.raises(UserError, match="no folder data"):
        fail_when_killed()


# --- ps tasks that are not needed wait for the chief, and end as it does


@pytest.fixture
def idle_task(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], tuple[str, Future[None]]]:
    """Start an idle task in a thread; return its address and its outcome."""
    monkeypatch.setattr(platform_task, "BEAT_EVERY_S", 0.02)

    def start(start_timeout: float = 20.0) -> tuple[str, Future[None]]:
        (address,) = free_addresses(1)
        cluster = Cluster(("a:1",), role="ps", idle=(address,))
        job = Job(Experiment(), Place(start_timeout=start_timeout), cluster=cluster)
        return address, ThreadPoolExecutor(1).submit(platform_task.wait_for_chief, job)

    return start


def test_an_idle_task_ends_well_with_the_chief(idle_task) -> None:  # type: ignore[no-untyped-def]
    address, outcome = idle_task()
    with platform_task.accompany([address]):
        threading.Event().wait(0.2)
        assert not outcome.done()
    assert outcome.result(timeout=20) is None


def test_an_idle_task_fails_when_the_chief_fails(idle_task) -> None:  # type: ignore[no-untyped-def]
    address, outcome = idle_task()
    with suppress(KeyError), platform_task.accompany([address]):
        threading.Event().wait(0.2)
        raise KeyError
    with pytest.raises(ConnectionError, match="the chief at a:1 is gone"):
        outcome.result(timeout=20)


def test_an_idle_task_whose_chief_never_comes_says_so(idle_task) -> None:  # type: ignore[no-untyped-def]
    _, outcome = idle_task(0.1)
    with pytest.raises(ConnectionError, match="no sign of the chief at a:1"):
        outcome.result(timeout=20)
