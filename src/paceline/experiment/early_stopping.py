"""When training ends before its last step. Part of the experiment: it decides the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.experiment.fields import Range


@dataclass(frozen=True)
class EarlyStopping:
    """Ending the training when the validation split no longer improves."""

    patience: Annotated[int, Range(0, 10**6)] = 0
    """Number of evaluations without an improvement after which training ends as finished. It needs
    a validation split (data.validation). 0 disables."""
    metric: Literal["accuracy", "loss"] = "accuracy"
    """What must improve on the validation split."""
    min_delta: Annotated[float, Range(0)] = 0.0
    """Smallest change that counts as an improvement."""

    def ends(self, values: Sequence[float]) -> bool:
        """Return whether training ends after these values of the metric, one per evaluation."""
        if not self.patience:
            return False
        sign = 1 if self.metric == "accuracy" else -1
        best, waited = float("-inf"), 0
        for value in values:
            if sign * value > best + self.min_delta:  # NaN is not an improvement
                best, waited = sign * value, 0
            else:
                waited += 1
        return waited >= self.patience
