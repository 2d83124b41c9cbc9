"""A group of workers that are not processes: the first cause, signals, and replaced workers."""

import signal
import time
from dataclasses import replace

import pytest

from fake_workers import UNTIL_SIGNAL, FakeWorker, Script
from paceline.errors import AddressTaken, Interrupted, PassingFault, UserError, WorkerFailed
from paceline.experiment.experiment import Experiment
from paceline.job import Cluster, Job, Place
from paceline.messages import Alive, Block, Crash, Done, Error, Message, Start, Warn, Working
from paceline.supervise import diagnosis
from paceline.supervise.group import WorkerGroup
from paceline.supervise.watchdog import Watchdog

STARTED = Start(total_steps=100, steps_per_epoch=10)
DONE = Done({"finished": True})
LOST = (STARTED, Crash("another worker is gone", lost=True), 1)


def group_of(*scripts: Script) -> WorkerGroup:
    job = Job(Experiment(replicas=4), Place(workers=len(scripts)))
    addresses = tuple(f"{letter}:1" for letter in "abcd"[: len(scripts)])
    jobs = [replace(job, cluster=Cluster(addresses, index)) for index in range(len(scripts))]
    return WorkerGroup([FakeWorker(own, script) for own, script in zip(jobs, scripts, strict=True)])


@pytest.mark.parametrize(
    ("scripts", "kind", "text"),
    [
        ((LOST, (STARTED, -9)), WorkerFailed, "worker 1 failed: killed by SIGKILL"),
        ((LOST, (STARTED, Error("no folder"), 2)), UserError, "no folder"),
        (
            (LOST, LOST, (Crash("RuntimeError: x"), 1)),
            WorkerFailed,
            "worker 2 failed: RuntimeError",
        ),
        (((STARTED, -9), (Error("no folder"), 2)), UserError, "no folder"),
        (((Crash("RuntimeError: x"), 1), (Error("no folder"), 2)), UserError, "no folder"),
        (((Error("slow disk", passing=True), 2), (Error("none"), 2)), UserError, "none"),
        (((STARTED, -9), (Crash("RuntimeError: x"), 1)), WorkerFailed, "worker 0 failed: killed"),
        (((STARTED, -9), (DONE, 0)), WorkerFailed, "worker 0 failed: killed"),
        (((Error("a", address_taken=True), 2),), AddressTaken, "a"),
        (((Error("cannot read b", passing=True), 2),), PassingFault, "cannot read b"),
        (((STARTED, 1),), WorkerFailed, "worker 0 failed: exit code 1"),
        ((LOST,), WorkerFailed, "worker 0 failed: another worker is gone"),
    ],
)
def test_the_first_cause_is_raised_whoever_reports_first(
    scripts: tuple[Script, ...], kind: type[Exception], text: str
) -> None:
    for order in (scripts, scripts[::-1]) if "worker" not in text else (scripts,):
        with group_of(*order) as group, pytest.raises(kind, match=f"^{text}") as raised:
            group.run(lambda message: None)
        assert type(raised.value) is kind


def test_after_a_death_in_training_nobody_waits_for_more_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others notice the loss and end, and their memory with them."""
    monkeypatch.setattr(diagnosis, "EXPLAIN_S", 3600.0)
    with (
        group_of((STARTED, Block(1), -9), (STARTED, UNTIL_SIGNAL)) as group,
        pytest.raises(WorkerFailed, match="worker 0 failed: killed by SIGKILL"),
    ):
        group.run(lambda message: None)


def test_a_slow_listener_makes_no_worker_silent() -> None:
    group = group_of((STARTED, Alive(clock=1.0), DONE, 0), (STARTED, Alive(clock=1.0), DONE, 0))
    now = [0.0]
    group._watchdog = Watchdog(Place(workers=2, stall_timeout=5.0), 2, lambda: now[0])

    def listen(message: Message) -> None:
        now[0] += 7.0
        time.sleep(0.1)  # both have sent everything meanwhile

    with group:
        assert group.run(listen) == {"finished": True}


def test_a_listener_gets_what_it_needs_and_each_message_once() -> None:
    heard = list[Message]()
    note = Warn("slow")
    chief, other = (STARTED, Working(), note, DONE, 0), (STARTED, Block(1), note, DONE, 0)
    with group_of(chief, other) as group:
        assert group.run(heard.append) == {"finished": True}
    assert sorted(map(repr, heard)) == sorted(map(repr, [STARTED, note, note, DONE]))


@pytest.mark.parametrize(
    ("numbers", "sent"),
    [
        ([signal.SIGTERM], [signal.SIGTERM]),
        ([signal.SIGUSR1, signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM]),
        ([signal.SIGHUP, signal.SIGHUP], [signal.SIGTERM, signal.SIGTERM]),
        ([signal.SIGQUIT], [signal.SIGTERM]),
        ([signal.SIGINT, signal.SIGINT], [signal.SIGTERM, signal.SIGKILL]),
    ],
)
def test_workers_save_after_the_first_signal_and_are_killed_by_the_second(
    numbers: list[int], sent: list[int]
) -> None:
    with group_of((STARTED, UNTIL_SIGNAL)) as group:

        def interrupt(message: Message) -> None:
            if message == STARTED:
                for number in numbers:
                    group.interrupt(number)

        with pytest.raises(Interrupted, match=f"by {signal.Signals(numbers[0]).name}"):
            group.run(interrupt)
        assert group.workers[0].signals == sent


@pytest.mark.parametrize("nohup", [False, True])
def test_a_closed_terminal_ends_a_group_that_is_not_detached(nohup: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    try:
        with group_of((STARTED, UNTIL_SIGNAL)) as group:
            assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) == nohup
            assert callable(signal.getsignal(signal.SIGQUIT))
            group.interrupt(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == (signal.SIG_IGN if nohup else signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_error_of_a_listener_counts_even_if_the_worker_then_fails() -> None:
    def refuse(message: Message) -> None:
        raise BrokenPipeError("nobody reads")

    with (
        group_of((STARTED, -signal.SIGTERM)) as group,
        pytest.raises(BrokenPipeError, match="nobody reads"),
    ):
        group.run(refuse)


def test_a_replaced_worker_of_parameter_servers_does_not_end_the_others() -> None:
    job = Job(Experiment(), Place(ps=1, max_restarts=1))
    addresses, ps = ("a:1", "b:1"), ("c:1",)
    chief = FakeWorker(replace(job, cluster=Cluster(addresses, 0, ps=ps)), (STARTED, UNTIL_SIGNAL))
    served = replace(job, cluster=Cluster(addresses, 1, ps=ps))
    lost, heard = FakeWorker(served, (-signal.SIGKILL,)), list[Message]()
    with (
        WorkerGroup([chief, lost]) as group,
        pytest.raises(WorkerFailed, match="worker 0 failed: kill"),
    ):
        group.run(heard.append)
    assert lost.starts == 2
    assert [each.text for each in heard if isinstance(each, Warn)] == [
        "worker 0 failed: killed by SIGKILL; starting it again, the others continue"
    ]
