"""Ending a training early (`early_stopping` of the experiment), in all workers after the same step.

The chief decides from the evaluations in metrics.jsonl, so a resumed run decides as an undisturbed
one. The others ask it after each evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.errors import UserError
from paceline.experiment.experiment import EarlyStopping
from paceline.experiment.plan import Plan
from paceline.maths.metrics import EvalResult
from paceline.run_folder.folder import RunFolder


class StopEarly:
    """Decides after each evaluation whether training ends (`loop.EndsEarly`).

    `values` are the metric at each evaluation before; only the chief's are used. `agree` is that of
    the engine.
    """

    def __init__(
        self, settings: EarlyStopping, agree: Callable[[bool], bool], values: Sequence[float] = ()
    ) -> None:
        self._settings = settings
        self._agree = agree
        self._values = list(values)

    def __call__(self, evaluation: EvalResult) -> bool:
        if self._settings.patience:
            self._values.append(getattr(evaluation.splits["validation"], self._settings.metric))
        return self.has_ended()

    def has_ended(self) -> bool:
        """Return whether the evaluations so far end the training."""
        if not self._settings.patience:
            return False
        return self._agree(self._settings.ends(self._values))


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
