"""When a training ends before its last step. Part of the experiment: it decides the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class EarlyStopping:
    """Ending the training when the validation split no longer gets better."""

    patience: int = 0
    """Number of evaluations without an improvement after which training ends and counts as
    finished. It needs a validation split (data.validation). 0 trains to the last step."""
    metric: Literal["accuracy", "loss"] = "accuracy"
    """What must improve on the validation split."""
    min_delta: float = 0.0
    """Smallest change that counts as an improvement."""

    def ends(self, values: Sequence[float]) -> bool:
        """Return whether training ends after these values of the metric, one per evaluation."""
        if not self.patience:
            return False
        sign = 1 if self.metric == "accuracy" else -1
        best, waited = float("-inf"), 0
        for value in values:
            if sign * value > best + self.min_delta:  # NaN is no improvement
                best, waited = sign * value, 0
            else:
                waited += 1
        return waited >= self.patience
