"""Sums of evaluation batches -> metrics. Rows are added in the order of the batches, so the worker count never shows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def num_batches(size: int, batch_size: int) -> int:
    return -(-size // batch_size)


def evaluated(splits: Iterable[str], final: bool) -> list[str]:
    """The validation split where there is one, else the test split; at the end, both."""
    names = list(splits)
    return [name for name in names if final or name == "validation" or "validation" not in names]


def summarise(split: str, rows: np.ndarray) -> dict[str, float]:
    """Metrics of a split from one row [loss, correct, correct among five, count] per batch."""
    loss, correct, among_five, count = (float(np.cumsum(column)[-1]) for column in np.asarray(rows, np.float64).T)
    return {
        f"{split}_accuracy": correct / count,
        f"{split}_loss": loss / count,
        f"{split}_top5": among_five / count,
        f"{split}_count": count,
    }
