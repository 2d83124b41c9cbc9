"""Predictions -> precision, recall, F1, calibration and top-k accuracy. NumPy only.

`paceline eval` and the report use the same functions. What each class is called belongs to them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BINS = 15
"""Of equal width, for the expected calibration error (Guo et al. 2017)."""


class Scores(NamedTuple):
    """How well a class is found, or the mean over classes; None where it is not defined."""

    precision: float | None
    """Of the examples predicted as the class, the share that are of it; None if none are."""
    recall: float | None
    """Of the examples of the class, the share that are predicted as it; None without examples."""
    f1: float | None
    """The harmonic mean of both; None if the class is neither a label nor a prediction."""


def class_scores(confusion: Array) -> list[Scores]:
    """Return the scores of each class from a confusion matrix: labels in rows, then predictions."""
    correct = confusion.diagonal().tolist()
    labelled, predicted = confusion.sum(axis=1).tolist(), confusion.sum(axis=0).tolist()
    return [
        Scores(
            correct[i] / predicted[i] if predicted[i] else None,
            correct[i] / labelled[i] if labelled[i] else None,
            2 * correct[i] / (labelled[i] + predicted[i]) if labelled[i] + predicted[i] else None,
        )
        for i in range(len(confusion))
    ]


def macro_scores(scores: list[Scores]) -> Scores:
    """Return the mean of each score over the classes that are a label or a prediction.

    What is not defined counts as 0, as in scikit-learn.
    """
    seen = [score for score in scores if score.f1 is not None]
    if not seen:
        return Scores(None, None, None)
    sums = (sum(value or 0.0 for value in values) for values in zip(*seen, strict=True))
    return Scores(*(total / len(seen) for total in sums))


def calibration_error(correct: Array, probabilities: Array) -> float:
    """Return the expected calibration error of predictions with these probabilities.

    It is the mean distance between the probability of a prediction and the share of correct ones,
    over bins of the probability, weighted by their size.
    """
    edges = np.linspace(0, 1, BINS + 1)[1:-1]
    bins = np.digitize(probabilities, edges, right=True)
    gaps = np.asarray(correct, np.float64) - np.asarray(probabilities, np.float64)
    sums = np.bincount(bins, weights=gaps, minlength=BINS)
    return float(np.abs(sums).sum() / len(gaps))


def top_k_accuracy(labels: Array, probabilities: Array, k: int) -> float:
    """Return the share of examples with fewer than k classes more probable than the label."""
    own = np.take_along_axis(probabilities, labels.astype(np.int64)[:, None], axis=1)
    return float(((probabilities > own).sum(axis=1) < k).mean())
