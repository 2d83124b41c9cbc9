"""The training loop, with an engine that computes nothing."""

from dataclasses import replace
from typing import Any

import pytest

from blocks import block_of, evaluation_of
from paceline.experiment.experiment import EarlyStopping
from paceline.experiment.plan import Plan
from paceline.loop import BLOCK_SECONDS, Outcome, StopRequested, next_block_steps, train
from paceline.maths.metrics import BlockResult, EvalResult
from paceline.maths.state import State
from paceline.run_folder.early_stopping import StopEarly

PLAN = Plan(steps_per_epoch=5, total_steps=20, evaluate_every=5)


class FakeEngine:
    """Writes down its calls; each step takes `seconds_per_step`."""

    def __init__(self, seconds_per_step: float = 1e-3) -> None:
        self.calls: list[object] = []
        self._seconds_per_step = seconds_per_step

    def check(self, facts: dict[str, Any]) -> None:
        raise NotImplementedError

    def load(self, state: State) -> State:
        return state

    def advance(self, start: int, stop: int) -> BlockResult:
        self.calls.append((start, stop))
        seconds = {"seconds_per_step": self._seconds_per_step}
        return block_of(stop, [1.0] * (stop - start), **seconds)

    def evaluate(self, final: bool) -> EvalResult:
        self.calls.append("all" if final else "validation")
        return evaluation_of(validation=0.5, **({"test": 0.25} if final else {}))

    def state(self) -> State:
        raise NotImplementedError

    def agree(self, own: bool) -> bool:
        self.calls.append(own)
        return own

    def close(self) -> None:
        raise NotImplementedError


def test_training_goes_from_stop_to_stop_of_the_plan_and_evaluates_where_it_says() -> None:
    engine, seen = FakeEngine(), list[tuple[int, bool]]()

    def note(block: BlockResult, evaluation: EvalResult | None) -> None:
        seen.append((block.step, evaluation is not None))

    outcome = train(engine, PLAN, [note])
    blocks = [call for call in engine.calls if isinstance(call, tuple)]
    assert [start for start, _ in blocks] == [0, *(stop for _, stop in blocks[:-1])]
    assert [call for call in engine.calls if isinstance(call, str)] == ["validation"] * 3 + ["all"]
    assert seen == [(stop, stop % 5 == 0) for _, stop in blocks]
    assert outcome.block is not None
    assert outcome.block.step == 20
    assert outcome.evaluation is not None
    assert list(outcome.evaluation.splits) == ["validation", "test"]


def test_training_continues_at_its_first_step_and_does_nothing_after_the_last() -> None:
    engine = FakeEngine()
    train(engine, PLAN, [], first_step=13)
    assert engine.calls[0] == (13, 14)
    assert train(FakeEngine(), PLAN, [], first_step=20) == Outcome()


def test_an_action_that_stops_training_is_the_last_one_called() -> None:
    called: list[str] = []

    def stop(block: BlockResult, evaluation: EvalResult | None) -> None:
        called.append("stop")
        raise StopRequested

    outcome = train(FakeEngine(), PLAN, [stop, lambda *_: called.append("after")])
    assert called == ["stop"]
    assert outcome.block is not None
    assert outcome.block.step == 1


def test_an_error_of_an_action_ends_training() -> None:
    def fail(block: BlockResult, evaluation: EvalResult | None) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(FakeEngine(), PLAN, [fail])


@pytest.mark.parametrize(
    ("num_steps", "seconds_per_step", "wanted"),
    [(1, 1e-3, 3), (3, 1e-3, 7), (4000, 1e-3, 5000), (1, 60.0, 1), (1, 0.0, 3)],
)
def test_blocks_double_until_they_take_some_seconds(
    num_steps: int, seconds_per_step: float, wanted: int
) -> None:
    block = block_of(num_steps, [1.0] * num_steps, seconds_per_step=seconds_per_step)
    assert next_block_steps(block) == wanted
    assert wanted * seconds_per_step <= BLOCK_SECONDS or wanted == 1


def test_a_recovered_block_is_not_trained_again_but_evaluated_and_reported() -> None:
    engine, seen = FakeEngine(), list[int]()
    recovered = block_of(5, [1.0, 1.0])
    train(engine, PLAN, [lambda block, _: seen.append(block.step)], 3, recovered=recovered)
    assert engine.calls[:2] == ["validation", (5, 10)]
    assert seen[0] == 5


@pytest.mark.parametrize(("patience", "steps"), [(0, 20), (1, 10), (2, 15), (3, 20)])
def test_training_ends_early_after_an_evaluation_of_all_splits(patience: int, steps: int) -> None:
    engine = FakeEngine()
    ends_early = StopEarly(EarlyStopping(patience), engine.agree) if patience else None
    outcome = train(engine, PLAN, [], 0, ends_early)
    assert outcome.block is not None
    assert (outcome.block.step, outcome.ended_early) == (steps, steps < 20)
    assert outcome.evaluation is not None
    assert replace(outcome.evaluation, ended_early=False) == engine.evaluate(final=True)


def test_all_workers_end_early_when_the_chief_does() -> None:
    class Follower(FakeEngine):
        def agree(self, own: bool) -> bool:
            return True

    outcome = train(Follower(), PLAN, [], 0, StopEarly(EarlyStopping(9), Follower().agree))
    assert outcome.block is not None
    assert outcome.block.step == 5
