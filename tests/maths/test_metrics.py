"""What a block of steps reports, from the tails of its steps, and an evaluation, from its rows."""

import numpy as np
import pytest

from blocks import block_of, evaluation_of
from paceline.maths.metrics import (
    Examples,
    Sums,
    Tail,
    block_result,
    num_batches,
    scalars,
    summarize,
    tail_scale,
)
from tiny import build_tiny_core

TAILS = np.array(
    [[2.0, 4, 16, 0, 0.5, 7, 9], [1.0, 8, 16, 0, 0.25, 0, 1], [3.0, 16, 16, 1, 0.125, 65520, 2]],
    np.float32,
)
"""Loss, correct, count, stop, seconds and two signatures of three steps."""


def test_means_of_replicas_become_sums_where_a_step_counts():
    replicas = np.array([[1.0, 2, 4, 0, 0.5, 5, 0], [3.0, 4, 4, 1, 1.5, 0, 9]], np.float32)
    step = replicas.mean(0) * tail_scale(2)
    assert step[len(Tail) :].tolist() == [5, 9]
    assert dict(zip(Tail, step.tolist(), strict=False)) == {
        Tail.LOSS: 2.0,
        Tail.CORRECT: 6.0,
        Tail.COUNT: 8.0,
        Tail.STOP: 1.0,
        Tail.SECONDS: 1.0,
    }


def test_a_block_has_a_number_for_each_of_its_steps():
    core = build_tiny_core()
    block = block_result(core, 5, TAILS, seconds=2.0)
    assert (block.step, block.num_steps, block.epoch) == (5, 3, 5 / core.plan.steps_per_epoch)
    assert block.losses.tolist() == [2, 1, 3]
    assert block.accuracies.tolist() == [0.25, 0.5, 1]
    assert (block.seconds_per_step, block.images_per_second) == (2.0, 8.0)
    assert block.stop_requested
    assert block.signatures.tolist() == [[7, 9], [0, 1], [65520, 2]]
    assert not block_result(core, 4, TAILS[:2], seconds=2.0).stop_requested
    assert [step for step, _ in block.each_step()] == [3, 4, 5]
    assert block.each_step()[1][1].keys() == {"loss", "accuracy", "learning_rate"}


@pytest.mark.parametrize(
    ("block", "evaluation", "some"),
    [
        (block_of(7), None, {"step": 7, "loss": 0.375, "accuracy": 0.5, "learning_rate": 0.1}),
        (block_of(7, more={"staleness_max": 3}), None, {"staleness_max": 3}),
        (block_of(7), evaluation_of(test=0.75), {"test_accuracy": 0.75, "test_count": 10}),
    ],
)
def test_the_scalars_of_a_block_and_its_evaluation_are_plain_numbers(block, evaluation, some):
    numbers = scalars(block, evaluation)
    assert some.items() <= numbers.items()
    assert {type(value) for value in numbers.values()} <= {int, float}
    assert any(name.startswith("test_") for name in numbers) is (evaluation is not None)


EXAMPLES = Examples(
    labels=np.array([0, 0, 1, 1, 2]),
    predictions=np.array([0, 1, 1, 0, 0]),
    probabilities=np.array([0.9, 0.6, 0.5, 0.8, 0.6]),
)


def test_rows_are_added_and_padding_is_left_out():
    """Two batches of three, the last with one example of padding."""
    rows = np.zeros([2, len(Sums) + 9], np.float32)
    rows[:, Sums.LOSS], rows[:, Sums.CORRECT] = [6, 2], [3, 1]
    rows[:, Sums.AMONG_FIVE], rows[:, Sums.COUNT] = [3, 2], [3, 2]
    rows[:, len(Sums) :] = np.arange(18).reshape(2, 9)
    found = summarize(rows)
    assert (found.loss, found.accuracy, found.top5, found.count) == (8 / 5, 4 / 5, 1.0, 5)
    assert found.examples == Examples(
        np.array([0, 1, 2, 9, 10]), np.array([3, 4, 5, 12, 13]), np.array([6, 7, 8, 15, 16])
    )


def test_the_confusion_counts_and_the_worst_mistakes_come_first():
    assert EXAMPLES.confusion(3).tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 0]]
    assert EXAMPLES.worst(2).tolist() == [3, 1]
    assert EXAMPLES.worst(9).tolist() == [3, 1, 4]


def test_the_last_batch_may_be_partly_empty():
    assert [num_batches(size, 250) for size in (1, 250, 251)] == [1, 1, 2]
