"""Actions: what is written, saved and told between two blocks, and what stops training."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blocks import block_of, evaluation_of
from image_folders import build, convert_here, write_images
from paceline.errors import UserError
from paceline.experiment.data import Data
from paceline.experiment.experiment import Experiment
from paceline.experiment.plan import Plan
from paceline.loop import StopRequested
from paceline.maths.state import State, StateLayout
from paceline.messages import Block, Evaluated, Message, Saved, Send, Warn, from_line, to_line
from paceline.run_folder.actions import (
    SaveCheckpoint,
    TrainingFailed,
    _thumbnails,
    send_metrics,
    stop_on_bad_loss,
    write_metrics,
)
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.user_actions import UserAction
from paceline.worker import _stop_action

EVALUATED = evaluation_of(test=0.75, validation=0.625)


def chief_of(
    state: Callable[[], State],
    checkpoints: Checkpoints,
    save_every: int = 1,
    send: Send = lambda message: None,
) -> Any:
    """Return what saving a checkpoint needs of a chief."""
    return SimpleNamespace(
        engine=SimpleNamespace(state=state),
        checkpoints=checkpoints,
        core=SimpleNamespace(plan=Plan(10, 1000, save_every=save_every)),
        folder=SimpleNamespace(publish=lambda: None),
        send=send,
    )


class Trained:
    """A fake engine and its checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.step = 0
        self.checkpoints = Checkpoints(folder, StateLayout({"params": (("kernel", (2,)),)}), keep=9)
        self.sent: list[Message] = []
        self.save = SaveCheckpoint(chief_of(self.state, self.checkpoints, 10, self.sent.append))

    def state(self) -> State:
        return State(self.step, {"params": np.full(2, self.step, np.float32)})


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


def test_metrics_are_written_without_the_single_steps(tmp_path: Path) -> None:
    block = block_of(7, events=("a worker is lost",), more={"staleness_max": 3})
    write_metrics(RunFolder(tmp_path), block, EVALUATED)
    (record,) = RunFolder(tmp_path).metrics.read()
    events = {"events": ["a worker is lost"]}
    assert record == block.scalars() | EVALUATED.scalars() | events
    assert (record["step"], record["loss"], record["staleness_max"]) == (7, 0.375, 3)


def test_a_checkpoint_is_saved_where_the_plan_says_so(trained: Trained) -> None:
    for trained.step in (5, 10, 15, 20):
        trained.save(block_of(trained.step), None)
    assert trained.checkpoints.steps() == [10, 20]
    assert [message.step for message in trained.sent if isinstance(message, Saved)] == [10, 20]


def test_the_best_is_chosen_on_validation_not_on_the_test_set(trained: Trained) -> None:
    measures = {10: (0.5, 0.9), 20: (0.6, 0.8), 30: (0.4, 0.95)}
    for trained.step, (validation, test) in measures.items():
        evaluation = evaluation_of(test=test, validation=validation)
        trained.save(block_of(trained.step), evaluation)
    best = trained.checkpoints.best()
    assert best is not None
    assert best.step == 20


def test_the_best_evaluation_so_far_is_saved_between_two_saves(trained: Trained) -> None:
    measures = {7: 0.6, 10: 0.5, 14: 0.6, 16: 0.7, 20: 0.1}
    for trained.step, validation in measures.items():
        trained.save(block_of(trained.step), evaluation_of(test=0.9, validation=validation))
    assert trained.checkpoints.steps() == [7, 10, 16, 20]
    best = trained.checkpoints.best()
    assert best is not None
    assert best.step == 16


@pytest.mark.parametrize(
    ("step", "requested", "signal", "workers"),
    [(13, False, False, 2), (2, True, False, 2), (2, False, True, 1)],
    ids=["where the plan says so", "if all workers agreed", "if a worker alone is asked"],
)
def test_a_run_stops(step: int, requested: bool, signal: bool, workers: int) -> None:
    stop, job = Event(), SimpleNamespace(cluster=SimpleNamespace(num_workers=workers))
    action: Any = _stop_action(job, SimpleNamespace(plan=Plan(10, 30, stop_at=13)), stop)
    action(block_of(12), None)
    if signal:
        stop.set()
    with pytest.raises(StopRequested):
        action(block_of(step, stop_requested=requested), None)


def test_one_of_several_workers_does_not_stop_alone() -> None:
    stop, job = Event(), SimpleNamespace(cluster=SimpleNamespace(num_workers=2))
    stop.set()
    _stop_action(job, SimpleNamespace(plan=Plan(10, 30)), stop)(block_of(2), None)


def test_no_step_is_saved_twice(trained: Trained) -> None:
    trained.step = 10
    trained.save(block_of(10), None)
    trained.save.save(10, None)
    assert len(trained.sent) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32("nan")])
def test_a_loss_that_is_not_finite_fails_and_names_its_step(bad: float) -> None:
    stop_on_bad_loss(block_of(10), None)
    with pytest.raises(TrainingFailed, match="the loss of step 9 is") as error:
        stop_on_bad_loss(block_of(10, [0.5, bad, 0.5]), None)
    assert isinstance(error.value, UserError)
    assert "\n" not in str(error.value)


def test_the_parent_is_sent_messages_that_json_can_hold() -> None:
    sent: list[Message] = []
    send_metrics(sent.append, block_of(7, events=("a worker is lost",)), None)
    send_metrics(sent.append, block_of(8), EVALUATED)
    assert [from_line(to_line(message)) for message in sent] == [
        Warn("a worker is lost"),
        Block(7, block_of(7).scalars(), False),
        Block(8, block_of(8).scalars(), True),
        Evaluated(8, EVALUATED.scalars()),
    ]


def test_a_users_action_gets_the_step_and_plain_numbers() -> None:
    got: list[tuple[int, dict[str, float]]] = []
    state, plan = State(7, {"params": np.ones(3, np.float32)}), Plan(4, 9, act_every=7)
    note = lambda step, metrics: got.append((step, metrics))  # noqa: E731
    action = UserAction("own.py:note", note, lambda: state, plan.acts_at)
    for step in (6, 7, 8):
        action(block_of(step), EVALUATED)
    ((step, metrics),) = got
    assert step == 7
    assert (metrics["loss"], metrics["test_accuracy"]) == (0.375, 0.75)
    assert all(isinstance(value, int | float) for value in metrics.values())


def test_an_action_that_wants_the_state_gets_vectors_that_it_cannot_change() -> None:
    state = State(7, {"params": np.ones(3, np.float32)})

    def double(step: int, metrics: dict[str, float], vectors: dict[str, np.ndarray]) -> None:
        assert vectors["params"].sum() == 3
        vectors["params"] *= 2

    double.wants_state = True  # type: ignore[attr-defined]
    action = UserAction("own.py:double", double, lambda: state, lambda step: True)
    with pytest.raises(TrainingFailed, match=r"own.py:double failed at step 7.*read-only"):
        action(block_of(7), None)


def test_a_state_that_is_not_finite_is_not_saved_though_the_loss_is(tmp_path: Path) -> None:
    layout = StateLayout({"params": (("a", (3,)),)})
    state = State(4, {"params": np.array([1.0, np.inf, 2.0], np.float32)})
    checkpoints = Checkpoints(tmp_path, layout)
    save = SaveCheckpoint(chief_of(lambda: state, checkpoints))
    with pytest.raises(TrainingFailed, match=r"the vector params .* after step 4"):
        save(block_of(4), None)
    assert checkpoints.steps() == []


def test_thumbnails_are_read_without_files_of_autograph(tmp_path: Path) -> None:
    convert_here(write_images(tmp_path / "images"), tmp_path / "records")
    source = build("tfrecord", tmp_path / "records")
    experiment = dataclasses.replace(Experiment(), data=Data(image_size=16))
    core: Any = SimpleNamespace(experiment=experiment, splits={"test": source.test})
    before = {*sys.modules}
    assert _thumbnails(core, "test", np.array([0, 3]), side=8).shape == (2, 8, 8, 3)
    left = [name for name in sys.modules.keys() - before if "autograph_generated" in name]
    assert not left, "if a worker is killed, they stay in the temporary folder"
