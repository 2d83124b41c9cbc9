"""Ending a training early (`early_stopping` of the experiment), in all workers after the same step.

The chief decides from the evaluations in metrics.jsonl, so a resumed run decides as an undisturbed
one. The others ask it after each evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError
from paceline.experiment.early_stopping import EarlyStopping
from paceline.experiment.plan import Plan
from paceline.maths.metrics import Metrics
from paceline.runs.actions import StopRequested
from paceline.runs.folder import RunFolder

if TYPE_CHECKING:
    from paceline.engines.base import Engine

ENDED_EARLY = "ended_early"
"""Name in metrics.jsonl and result.json."""


class EndsEarly:
    """An engine whose evaluation also decides whether the training ends.

    If it does, its metrics are those of the last evaluation of a training.
    """

    def __init__(self, engine: Engine, settings: EarlyStopping, values: Sequence[float]) -> None:
        self._engine = engine
        self._settings = settings
        self._values = list(values)
        """The metric at each evaluation so far; what the chief has counts."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def has_ended(self) -> bool:
        """Return whether the evaluations so far end the training."""
        return self._engine.agree(self._settings.ends(self._values))

    def evaluate(self, final: bool) -> Metrics:
        metrics = self._engine.evaluate(final)
        if final:
            return metrics
        self._values.append(metrics[f"validation_{self._settings.metric}"])
        return metrics | self.last_evaluation() if self.has_ended() else metrics

    def last_evaluation(self) -> Metrics:
        """Return the metrics of all splits, and that the training ended early."""
        return self._engine.evaluate(final=True) | {ENDED_EARLY: True}


def stop_early(step: int, metrics: Metrics) -> None:
    """End the loop where `EndsEarly` decided it. An action."""
    if metrics.get(ENDED_EARLY):
        raise StopRequested(step, metrics)


def read_values(run: RunFolder, settings: EarlyStopping, plan: Plan, step: int) -> list[float]:
    """Return the metric at each evaluation until `step`; a missing one is a UserError."""
    if not settings.patience:
        return []
    name = f"validation_{settings.metric}"
    found = {each["step"]: each[name] for each in run.metrics.read() if name in each}
    expected = [at for at in range(1, step + 1) if plan.evaluates_at(at)]
    if missing := [at for at in expected if at not in found]:
        raise UserError(
            f"{run.metrics.path} lacks the evaluation of step {missing[0]}, on which early "
            "stopping depends; restore the file from a copy, or use another --run-dir"
        )
    return [found[at] for at in expected]
