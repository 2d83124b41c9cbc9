"""Results of blocks and evaluations, for tests of what is done with them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.maths.metrics import BlockResult, EvalResult, Examples, SplitResult


def block_of(step: int, losses: Sequence[float] = (0.5, 0.25), **fields: Any) -> BlockResult:
    """Return the result of a block of as many steps as there are losses, which ends at `step`."""
    usual = {
        "epoch": step / 10,
        "losses": np.array(losses),
        "accuracies": np.linspace(0.25, 0.75, len(losses)),
        "learning_rates": np.linspace(0.2, 0.1, len(losses)),
        "seconds_per_step": 0.5,
        "images_per_second": 1000.0,
    }
    return BlockResult(step, **(usual | fields))


def evaluation_of(
    examples: Examples | None = None, ended_early: bool = False, **accuracies: float
) -> EvalResult:
    """Return the result of an evaluation, by the accuracy of each split."""
    examples = examples or Examples(np.array([1]), np.array([1]), np.array([0.9]))
    splits = {
        split: SplitResult(0.5, accuracy, 1.0, 10, examples)
        for split, accuracy in accuracies.items()
    }
    return EvalResult(splits, ended_early)
