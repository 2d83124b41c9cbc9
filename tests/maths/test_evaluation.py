"""Rows of evaluation batches -> the result of a split."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.maths.evaluation import Examples, Sums, evaluated, num_batches, summarize

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


def test_the_confusion_counts_each_class_as_each_prediction():
    assert EXAMPLES.confusion(3).tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 0]]


def test_the_worst_mistakes_come_first_and_equal_ones_in_their_order():
    assert EXAMPLES.worst(2).tolist() == [3, 1]
    assert EXAMPLES.worst(9).tolist() == [3, 1, 4]


@pytest.mark.parametrize(("size", "batches"), [(1, 1), (250, 1), (251, 2)])
def test_the_last_batch_may_be_partly_empty(size, batches):
    assert num_batches(size, 250) == batches


@pytest.mark.parametrize(
    ("splits", "final", "wanted"),
    [
        (["test"], False, ["test"]),
        (["test", "validation"], False, ["validation"]),
        (["test", "validation"], True, ["test", "validation"]),
    ],
)
def test_the_test_split_is_evaluated_last_if_there_is_a_validation_split(splits, final, wanted):
    assert evaluated(splits, final) == wanted
