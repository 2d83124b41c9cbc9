"""Rows of evaluation batches -> the result of an evaluation.

Rows are added in the order of the batches, so the result does not depend on the number of workers.
A row is [sums over the batch (`Sums`) | labels | predictions | probabilities]; the last three have
a number for each example. Labels are stored as float32, which is exact up to 16 million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from paceline.maths.replica import Core


class Sums(IntEnum):
    """The numbers at the beginning of a row."""

    LOSS = 0
    CORRECT = 1
    AMONG_FIVE = 2
    COUNT = 3


@dataclass(frozen=True, eq=False)
class Examples:
    """The prediction for each example of a split, in the split's order."""

    labels: np.ndarray
    predictions: np.ndarray
    probabilities: np.ndarray
    """Probabilities of the predictions."""

    def __eq__(self, other: object) -> bool:
        names = ("labels", "predictions", "probabilities")
        return isinstance(other, Examples) and all(
            np.array_equal(getattr(self, each), getattr(other, each)) for each in names
        )

    def confusion(self, num_classes: int) -> np.ndarray:
        """Return how often each class (row) was predicted as each class (column)."""
        counts = np.bincount(self.labels * num_classes + self.predictions, minlength=num_classes**2)
        return counts.reshape(num_classes, num_classes)

    def worst(self, most: int) -> np.ndarray:
        """Return the indices of the wrong predictions with the highest probabilities."""
        wrong = np.flatnonzero(self.labels != self.predictions)
        return wrong[np.argsort(-self.probabilities[wrong], kind="stable")][:most]


@dataclass(frozen=True)
class SplitResult:
    """What the evaluation of one split measured."""

    loss: float
    accuracy: float
    top5: float
    count: int
    """The number of examples."""
    examples: Examples


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation measured, by split: test, validation or both."""

    splits: dict[str, SplitResult]
    ended_early: bool = False
    """Whether training ends after this evaluation (`early_stopping` of the experiment)."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers of all splits, such as test_accuracy."""
        return {
            f"{split}_{name}": getattr(result, name)
            for split, result in self.splits.items()
            for name in ("accuracy", "loss", "top5", "count")
        }


def num_batches(size: int, batch_size: int) -> int:
    """Return the number of batches of a split; the last one may be partly empty."""
    return -(-size // batch_size)


def evaluated(splits: Iterable[str], final: bool) -> list[str]:
    """Return the validation split if there is one, otherwise the test split; at the end, all."""
    names = list(splits)
    return [name for name in names if final or name == "validation" or "validation" not in names]


def evaluate_splits(
    core: Core, final: bool, rows_of: Callable[[str, int], np.ndarray]
) -> EvalResult:
    """Return the result of all splits that are evaluated now.

    `rows_of(split, count)` is the engine's part: the rows of the first `count` batches of a split,
    in their order. Rows beyond `count` are ignored.
    """
    results = {}
    for split in evaluated(core.splits, final):
        count = num_batches(core.splits[split].size, core.eval_batch_size)
        results[split] = summarize(rows_of(split, count)[:count])
    return EvalResult(results)


def summarize(rows: np.ndarray) -> SplitResult:
    """Return the result of a split from the rows of its batches."""
    sums = np.cumsum(rows[:, : len(Sums)], axis=0, dtype=np.float64)[-1]
    count = int(sums[Sums.COUNT])
    labels, predictions, probabilities = (
        np.concatenate(column)[:count] for column in np.split(rows[:, len(Sums) :], 3, axis=1)
    )
    return SplitResult(
        loss=float(sums[Sums.LOSS] / count),
        accuracy=float(sums[Sums.CORRECT] / count),
        top5=float(sums[Sums.AMONG_FIVE] / count),
        count=count,
        examples=Examples(labels.astype(np.int64), predictions.astype(np.int64), probabilities),
    )
