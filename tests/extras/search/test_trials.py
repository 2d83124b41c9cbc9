"""Which trials are done, and which are worse than most others."""

import math
from typing import Any

import pytest

from paceline.extras.search.options import Options
from paceline.extras.search.trials import TrialEvaluation, TrialSummary, is_done, is_worse


def evaluations(*accuracies: float, loss: float = 1.0) -> list[TrialEvaluation]:
    """Return evaluations after each eighth of a training."""
    return [
        TrialEvaluation(number, float(number), number / 8, accuracy, loss)
        for number, accuracy in enumerate(accuracies, 1)
    ]


@pytest.mark.parametrize(
    ("accuracies", "stops"),
    [
        ((0.3, 0.9), False),  # the best of five
        ((0.3, 0.8), False),  # equal to the best other
        ((0.3, 0.75), False),  # the second of five: one in four, rounded up
        ((0.3, 0.55), True),
        ((0.9, 0.9, 0.1), False),  # no comparison at 3/8
        ((0.9,) * 7 + (0.1,), False),  # at its end
    ],
)
def test_asha_compares_trials_after_the_same_fraction_of_their_training(
    accuracies: tuple[float, ...], stops: bool
) -> None:
    values = {2: (0.2, 0.8), 3: (0.2, 0.7), 4: (0.2, 0.6), 5: (), 6: (0.2, 0.5), 7: (0.9,)}
    others = {number: evaluations(*each) for number, each in values.items()}
    assert is_worse(others | {1: evaluations(*accuracies)}, 1) == stops


def test_of_equal_accuracies_the_lower_loss_is_better_and_no_number_the_worst() -> None:
    known = {1: evaluations(0.1, loss=math.nan)}
    assert not is_worse(known, 1)
    assert not is_worse(known | {2: evaluations(0.1, loss=9.0)}, 2)
    assert is_worse({2: evaluations(0.1, loss=9.0)} | known, 1)


def test_only_a_search_with_a_scheduler_leaves_stopped_trials_alone() -> None:
    def done(state: Any, scheduler: Any) -> bool:
        return is_done(TrialSummary(1, {}, "", state), Options(scheduler=scheduler))

    assert done("stopped", "asha")
    assert not done("stopped", "none")
    assert done("failed", "none")
    assert not done("unfinished", "asha")
