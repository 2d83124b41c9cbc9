"""Which trials are done, and which are worse than most others."""

from __future__ import annotations

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
        ((0.9,), False),  # the best of five
        ((0.8,), False),  # equal to the best other
        ((0.75,), False),  # the second of five: one in four, rounded up
        ((0.55,), True),
        ((0.9, 0.3), True),  # compared again at 1/4, with those that came so far
        ((0.9, 0.9, 0.1), False),  # no comparison at 3/8
        ((0.9,) * 7 + (0.1,), False),  # at its end
    ],
)
def test_asha_compares_trials_after_the_same_fraction_of_their_training(
    accuracies: tuple[float, ...], stops: bool
) -> None:
    others = {2: evaluations(0.8, 0.8), 3: evaluations(0.7, 0.7), 4: evaluations(0.6), 5: []}
    known = others | {1: evaluations(*accuracies), 6: evaluations(0.5)}
    assert (
        is_worse(known, 1, Options(grace=1 / 8, reduction=2 if len(accuracies) == 2 else 4))
        == stops
    )


def test_asha_takes_a_loss_that_is_not_a_number_as_the_worst() -> None:
    options = Options(metric="loss", grace=1 / 8)
    known = {1: evaluations(0.1, loss=math.nan)}
    assert not is_worse(known, 1, options)
    assert not is_worse(known | {2: evaluations(0.1, loss=9.0)}, 2, options)
    assert is_worse({2: evaluations(0.1, loss=9.0)} | known, 1, options)


def test_only_a_search_with_a_scheduler_leaves_stopped_trials_alone() -> None:
    def done(state: Any, scheduler: Any) -> bool:
        return is_done(TrialSummary(1, {}, "", state), Options(scheduler=scheduler))

    assert done("stopped", "asha")
    assert not done("stopped", "none")
    assert done("failed", "none")
    assert not done("unfinished", "asha")
