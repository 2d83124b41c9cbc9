"""Precision, recall, F1, calibration and top-k: against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.results.scores import BINS, Evaluation, calibration_error, class_scores, macro_scores

CONFUSION = np.array([[8, 2, 0, 0], [1, 3, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0]])
"""The third class is never predicted, the fourth neither seen nor predicted."""


def test_precision_recall_and_f1_of_each_class() -> None:
    first, second, third, fourth = class_scores(CONFUSION)
    assert first == pytest.approx((8 / 13, 0.8, 2 * 8 / (13 + 10)))
    assert second == pytest.approx((3 / 5, 3 / 4, 2 * 3 / (5 + 4)))
    assert third == (None, 0.0, 0.0)
    assert fourth == (None, None, None)


def test_macro_scores_are_means_over_the_classes_that_occur_as_in_scikit_learn() -> None:
    expected = (8 / 13 + 3 / 5) / 3, (0.8 + 0.75) / 3, (16 / 23 + 6 / 9) / 3
    assert macro_scores(class_scores(CONFUSION)) == pytest.approx(expected)
    assert macro_scores(class_scores(np.zeros([2, 2], int))) == (None, None, None)


def test_the_calibration_error_is_that_of_a_loop_over_bins() -> None:
    random = np.random.default_rng(0)
    probabilities = np.concatenate([random.random(500).astype(np.float32), [0.0, 1.0]])
    correct = random.random(502) < probabilities**2
    expected = 0.0
    for i in range(BINS):
        within = (probabilities > i / BINS) & (probabilities <= (i + 1) / BINS)
        within |= (probabilities == 0) & (i == 0)
        if within.any():
            gap = abs(correct[within].mean() - probabilities[within].astype(np.float64).mean())
            expected += gap * within.mean()
    assert calibration_error(correct, probabilities) == pytest.approx(expected)
    assert calibration_error(np.array([True, True]), np.array([1.0, 1.0])) == 0


def test_top_k_counts_labels_among_the_k_most_probable() -> None:
    probabilities = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]])
    numbers = ("run", 1, "test", 0.0, 0.0, 0.0, 3)
    evaluation = Evaluation(*numbers, ("a", "b", "c"), np.array([1, 0, 1]), probabilities)
    assert [evaluation.top_k(k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])


def test_an_evaluation_shows_its_numbers_and_not_every_example() -> None:
    arrays = (np.zeros(3, np.int32), np.full((3, 2), 0.5, np.float32))
    shown = repr(Evaluation("runs/a", 7, "test", 0.5, 1.0, 0.25, 3, ("a", "b"), *arrays))
    assert "accuracy=0.5" in shown
    assert "array" not in shown
