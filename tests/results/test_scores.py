"""Precision, recall, F1, calibration and top-k: against their definitions."""

import numpy as np
import pytest

from paceline.results.scores import (
    BINS,
    Evaluation,
    calibration_error,
    class_scores,
    macro_scores,
    most_mistaken,
)

CONFUSION = np.array([[8, 2, 0, 0], [1, 3, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0]])
"""The third class is never predicted, the fourth neither seen nor predicted."""
LABELS, PREDICTIONS = (
    np.repeat(each.ravel(), CONFUSION.ravel()) for each in np.indices(CONFUSION.shape)
)
NONE = np.zeros(0, np.int32)


def test_precision_recall_and_f1_of_each_class() -> None:
    first, second, third, fourth = class_scores(LABELS, PREDICTIONS, 4)
    assert first == pytest.approx((8 / 13, 0.8, 2 * 8 / (13 + 10)))
    assert second == pytest.approx((3 / 5, 3 / 4, 2 * 3 / (5 + 4)))
    assert third == (None, 0.0, 0.0)
    assert fourth == (None, None, None)


def test_macro_scores_are_means_over_the_classes_that_occur_as_in_scikit_learn() -> None:
    expected = (8 / 13 + 3 / 5) / 3, (0.8 + 0.75) / 3, (16 / 23 + 6 / 9) / 3
    assert macro_scores(class_scores(LABELS, PREDICTIONS, 4)) == pytest.approx(expected)
    assert macro_scores(class_scores(NONE, NONE, 2)) == (None, None, None)


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


def test_an_evaluation_of_many_classes_needs_no_matrix_of_all_pairs() -> None:
    """A full one of 100,000 classes would take 75 GB."""
    count = 100_000
    labels = np.array([5, 5, 5, 5, 99_999, 7], np.int32)
    predictions = np.array([5, 9, 8, 8, 0, 7])
    assert most_mistaken(labels, predictions, count) == [(5, 8), (99_999, 0)]
    assert most_mistaken(labels[1:3], predictions[1:3], count) == [(5, 8)], "the first of equals"
    scores = class_scores(labels, predictions, count)
    assert scores[5] == (1.0, 0.25, 0.4)
    assert macro_scores(scores).recall == pytest.approx((0.25 + 0 + 1 + 0 + 0 + 0) / 6)


def test_each_class_names_what_it_is_mistaken_for() -> None:
    numbers = ("run", 1, "test", 0.0, 0.0, 0.0, len(LABELS))
    shares = np.eye(4)[PREDICTIONS]
    rows = Evaluation(*numbers, ("a", "b", "c", "d"), LABELS, shares).per_class()
    assert [(row.name, row.count, row.mistaken_for) for row in rows] == [
        ("a", 10, "b"),
        ("b", 4, "a"),
        ("c", 4, "a"),
        ("d", 0, ""),
    ]
