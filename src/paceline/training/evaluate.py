"""Sums of evaluation batches -> metrics. Rows are added in the order of the batches, so the worker count never shows."""

from __future__ import annotations

import numpy as np


def num_batches(size: int, batch_size: int) -> int:
    return -(-size // batch_size)


def summarise(split: str, rows: np.ndarray) -> dict[str, float]:
    """Metrics of a split from one row [loss, correct, correct among five, count] per batch."""
    loss, correct, among_five, count = (float(np.cumsum(column)[-1]) for column in np.asarray(rows, np.float64).T)
    return {
        f"{split}_accuracy": correct / count,
        f"{split}_loss": loss / count,
        f"{split}_top5": among_five / count,
        f"{split}_count": count,
    }
