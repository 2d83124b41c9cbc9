"""Actions: what is written, saved and told between two blocks, and what stops training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.experiment.plan import Plan
from paceline.maths.state import State, StateLayout
from paceline.messages import Block, Evaluation, Message, Saved, from_line, to_line
from paceline.runs.actions import (
    Action,
    SaveCheckpoint,
    SendMetrics,
    StopAt,
    StopOnNonFiniteLoss,
    StopOnRequest,
    StopRequested,
    TrainingFailed,
    WriteMetrics,
)
from paceline.runs.checkpoints import Checkpoints
from paceline.runs.folder import RunFolder

BLOCK: dict[str, Any] = {
    "loss": 0.25,
    "accuracy": np.float32(0.5),
    "learning_rate": 0.1,
    "images_per_second": 1000.0,
    "epoch": 1.5,
    "per_step": {"loss": [0.5, 0.25], "accuracy": [0.25, 0.75], "learning_rate": [0.2, 0.1]},
}
EVALUATED = BLOCK | {"test_accuracy": 0.75, "test_loss": 0.5, "validation_accuracy": 0.625}


class Trained:
    """A fake engine and its checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.step = 0
        self.checkpoints = Checkpoints(folder, StateLayout({"params": (("kernel", (2,)),)}), keep=9)
        self.sent: list[Message] = []
        self.save = SaveCheckpoint(
            self.state, self.checkpoints, lambda step: step % 10 == 0, self.sent.append
        )

    def state(self) -> State:
        return State(self.step, {"params": np.full(2, self.step, np.float32)})

    def train(self, actions: list[Action], steps: tuple[int, ...], metrics: dict[str, Any]) -> None:
        for self.step in steps:
            for action in actions:
                action(self.step, metrics)


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


def test_metrics_are_written_without_the_single_steps(tmp_path: Path) -> None:
    WriteMetrics(RunFolder(tmp_path))(7, EVALUATED)
    (record,) = RunFolder(tmp_path).metrics.read()
    assert record == {"step": 7} | {
        name: value for name, value in EVALUATED.items() if name != "per_step"
    }


def test_a_checkpoint_is_saved_where_the_plan_says_so(trained: Trained) -> None:
    for trained.step in (5, 10, 15, 20):
        trained.save(trained.step, BLOCK)
    assert trained.checkpoints.steps() == [10, 20]
    assert [message.step for message in trained.sent if isinstance(message, Saved)] == [10, 20]


def test_the_best_is_chosen_on_validation_not_on_the_test_set(trained: Trained) -> None:
    measures = {10: (0.5, 0.9), 20: (0.6, 0.8), 30: (0.4, 0.95)}
    for trained.step, (validation, test) in measures.items():
        trained.save(
            trained.step, BLOCK | {"validation_accuracy": validation, "test_accuracy": test}
        )
    best = trained.checkpoints.best()
    assert best is not None
    assert best.step == 20


def test_a_stop_is_raised_last_and_the_catcher_saves(trained: Trained) -> None:
    with pytest.raises(StopRequested) as stop:
        trained.train(
            [trained.save, StopAt(Plan(10, 30, stop_at=13).stops_at)], (5, 13, 20), EVALUATED
        )
    trained.save.save(stop.value.step, stop.value.metrics)
    latest, best = trained.checkpoints.latest(), trained.checkpoints.best()
    assert latest is not None
    assert latest.step == 13
    assert best is not None
    assert best.step == 13


def test_no_step_is_saved_twice(trained: Trained) -> None:
    trained.step = 10
    trained.save(10, BLOCK)
    trained.save.save(10, BLOCK)
    assert len(trained.sent) == 1


def test_a_request_that_all_workers_know_of_stops_after_the_block() -> None:
    action = StopOnRequest()
    action(1, BLOCK | {"stop_requested": False})
    with pytest.raises(StopRequested, match="after step 2"):
        action(2, BLOCK | {"stop_requested": True})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32("nan")])
def test_a_loss_that_is_no_number_fails_and_names_its_step(trained: Trained, bad: float) -> None:
    metrics = BLOCK | {"per_step": {"loss": [0.5, bad, 0.5]}}
    with pytest.raises(TrainingFailed, match="the loss of step 9 is") as error:
        trained.train([StopOnNonFiniteLoss(), trained.save], (10,), metrics)
    assert isinstance(error.value, UserError)
    assert "\n" not in str(error.value)
    assert trained.checkpoints.steps() == []


def test_a_finite_loss_passes_and_a_block_without_steps_is_judged_as_a_whole() -> None:
    StopOnNonFiniteLoss()(10, BLOCK)
    with pytest.raises(TrainingFailed, match="step 10"):
        StopOnNonFiniteLoss()(10, {"loss": float("nan")})


def test_the_parent_is_sent_messages_that_json_can_hold() -> None:
    sent: list[Message] = []
    SendMetrics(sent.append)(7, BLOCK)
    SendMetrics(sent.append)(8, EVALUATED)
    received = [from_line(to_line(message)) for message in sent]
    measured = {"test_accuracy": 0.75, "test_loss": 0.5, "validation_accuracy": 0.625}
    assert [type(message) for message in received] == [Block, Block, Evaluation]
    assert received[2] == Evaluation(8, measured)
    assert received[1].metrics["accuracy"] == 0.5


def test_a_state_that_is_not_finite_is_not_saved_though_the_loss_is(tmp_path: Path) -> None:
    layout = StateLayout({"params": (("a", (3,)),)})
    state = State(4, {"params": np.array([1.0, np.inf, 2.0], np.float32)})
    checkpoints = Checkpoints(tmp_path, layout)
    save = SaveCheckpoint(lambda: state, checkpoints, lambda step: True)
    StopOnNonFiniteLoss()(4, BLOCK)
    with pytest.raises(TrainingFailed, match=r"the vector params .* after step 4"):
        save(4, BLOCK)
    assert checkpoints.steps() == []
