"""Rows of evaluation batches -> metrics. Rows are added in the order of the batches, so the result
does not depend on the number of workers.

A row is [loss, correct, correct among five, count | labels | predictions | probabilities]: four
sums over the batch, then the label, the prediction and its probability for each example. Labels are
stored as float32, which is exact up to 16 million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from paceline.maths.replica import Core

NUM_SUMS = 4
EXAMPLES = "_examples"
"""End of the names of metrics that are not numbers but `Examples`."""


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


def num_batches(size: int, batch_size: int) -> int:
    """Return the number of batches of a split; the last one may be partly empty."""
    return -(-size // batch_size)


def evaluated(splits: Iterable[str], final: bool) -> list[str]:
    """Return the validation split if there is one, otherwise the test split; at the end, all."""
    names = list(splits)
    return [name for name in names if final or name == "validation" or "validation" not in names]


def evaluate_splits(
    core: Core, final: bool, rows_of: Callable[[str, int], np.ndarray]
) -> dict[str, Any]:
    """Return the metrics of all splits that are evaluated now.

    `rows_of(split, count)` is the engine's part: the rows of the first `count` batches of a split,
    in their order. Rows beyond `count` are ignored.
    """
    metrics: dict[str, Any] = {}
    for split in evaluated(core.splits, final):
        count = num_batches(core.splits[split].size, core.eval_batch_size)
        metrics |= summarise(split, rows_of(split, count)[:count])
    return metrics


def summarise(split: str, rows: np.ndarray) -> dict[str, Any]:
    """Return the metrics of a split from the rows of its batches."""
    sums = np.asarray(rows[:, :NUM_SUMS], np.float64)
    loss, correct, among_five, count = (float(np.cumsum(column)[-1]) for column in sums.T)
    labels, predictions, probabilities = (
        np.concatenate(column)[: int(count)] for column in np.split(rows[:, NUM_SUMS:], 3, axis=1)
    )
    return {
        f"{split}_accuracy": correct / count,
        f"{split}_loss": loss / count,
        f"{split}_top5": among_five / count,
        f"{split}_count": count,
        f"{split}{EXAMPLES}": Examples(
            labels.astype(np.int64), predictions.astype(np.int64), probabilities
        ),
    }
