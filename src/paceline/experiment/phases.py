"""Phases: runs of steps in which training images have one size and the same weights are trained.

Pure, no TensorFlow. A phase is compiled as a whole, so that what is frozen costs no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.experiment.experiment import Experiment
from paceline.experiment.groups import groups_of
from paceline.experiment.plan import Plan


@dataclass(frozen=True)
class Phase:
    """The steps from `first` to the next phase."""

    first: int
    image_size: int
    """Side of the training images; 0 is the usual size."""
    frozen: tuple[int, ...]
    """Numbers of the groups of weights that do not change."""


def build_phases(experiment: Experiment, plan: Plan) -> tuple[Phase, ...]:
    """Return the phases of a training. They begin with a round."""
    augment, groups = experiment.augment, groups_of(experiment.optimizer)
    ends = [_step(plan, epochs * plan.steps_per_epoch) for epochs in augment.size_epochs]
    frozen_from = [
        0 if group.is_frozen else _step(plan, group.until * plan.total_steps) for group in groups
    ]
    firsts = sorted({0, *ends, *frozen_from})
    phases = [
        Phase(
            first,
            next((size for size, end in zip(augment.sizes, ends, strict=True) if first < end), 0),
            tuple(number for number, start in enumerate(frozen_from) if first >= start),
        )
        for first in firsts
        if first < plan.total_steps
    ]
    return tuple(phases)


def _step(plan: Plan, steps: float) -> int:
    return -(-round(steps) // plan.round_steps) * plan.round_steps
