"""Early stopping: whether training ends after an evaluation (`loop.EndsEarly`)."""

from collections.abc import Callable, Sequence

from paceline.errors import UserError
from paceline.experiment.experiment import EarlyStopping
from paceline.experiment.plan import Plan
from paceline.maths.metrics import EvalResult
from paceline.run_folder.folder import RunFolder


class StopEarly:
    """Decides after each evaluation whether training ends.

    `values` are the metric at each evaluation before, from metrics.jsonl: so a resumed run decides
    as an undisturbed one. Only the chief's are used; the others ask it with the engine's `agree`.
    """

    def __init__(
        self, settings: EarlyStopping, agree: Callable[[bool], bool], values: Sequence[float] = ()
    ) -> None:
        self._settings = settings
        self._agree = agree
        self._values = list(values)

    def __call__(self, evaluation: EvalResult) -> bool:
        self._values.append(getattr(evaluation.splits["validation"], self._settings.metric))
        return self.has_ended()

    def has_ended(self) -> bool:
        """Return whether the evaluations so far end the training."""
        return self._agree(has_converged(self._settings, self._values))


def has_converged(settings: EarlyStopping, values: Sequence[float]) -> bool:
    """Return whether training ends after these values of the metric, one per evaluation."""
    sign = 1 if settings.metric == "accuracy" else -1
    best, waited = float("-inf"), 0
    for value in values:
        if sign * value > best + settings.min_delta:  # NaN is not an improvement
            best, waited = sign * value, 0
        else:
            waited += 1
    return waited >= settings.patience


def read_values(run: RunFolder, settings: EarlyStopping, plan: Plan, step: int) -> list[float]:
    """Return the metric at each evaluation until `step`; a missing one is a UserError."""
    name = f"validation_{settings.metric}"
    found = {each["step"]: each[name] for each in run.metrics.read() if name in each}
    expected = [at for at in range(1, step + 1) if plan.evaluates_at(at)]
    if missing := [at for at in expected if at not in found]:
        raise UserError(
            f"{run.metrics.path} lacks the evaluation of step {missing[0]}, on which early "
            "stopping depends; restore the file from a copy, or use another --run-dir"
        )
    return [found[at] for at in expected]
