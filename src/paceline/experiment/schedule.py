"""Step -> rates: the learning rate and every other number of an update that depends on the step.

No TensorFlow. The columns of a table of rates, as graphs take it, have their names in `Rates`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from paceline.experiment.experiment import Average, Experiment, Schedule
from paceline.experiment.optimizer import Group, groups_of
from paceline.experiment.plan import Plan

Number = TypeVar("Number")


def learning_rate(
    schedule: Schedule, step: int, plan: Plan, global_batch_size: int, end: int = 0
) -> float:
    """Return the rate of step `step` (from 0). Its curve ends at `end`, or with the training."""
    steps_per_epoch, total_steps = plan.steps_per_epoch, plan.total_steps
    scale = global_batch_size / schedule.scale_to_batch if schedule.scale_to_batch else 1
    peak, rising = schedule.rate * scale, warmup_steps(schedule, steps_per_epoch, total_steps)
    if step < rising:
        return peak * (schedule.warmup_from + (1 - schedule.warmup_from) * (step + 1) / rising)
    if schedule.name == "constant":
        return peak
    if schedule.name == "steps":
        passed = sum(step >= round(boundary * steps_per_epoch) for boundary in schedule.boundaries)
        return peak * (schedule.factors[passed - 1] if passed else 1.0)
    done = (step - rising) / max(1, (end or total_steps) - rising)
    left = (1 + cosine(math.pi * done)) / 2 if schedule.name == "cosine" else 1 - done
    return peak * (schedule.final + (1 - schedule.final) * left)


def warmup_steps(schedule: Schedule, steps_per_epoch: int, total_steps: int) -> int:
    """Return the length of the warm-up in steps."""
    if isinstance(schedule.warmup, str):
        return round(Fraction(schedule.warmup) * total_steps)
    return round(schedule.warmup * steps_per_epoch)


def unfinished_warmup(experiment: Experiment, plan: Plan) -> str:
    """Return a warning if training ends while the rate still rises; empty if it does not."""
    warmup, total = experiment.schedule.warmup, plan.total_steps
    rising = warmup_steps(experiment.schedule, plan.steps_per_epoch, total)
    if rising < total:
        return ""
    return (
        f"--schedule.warmup {warmup} takes {rising:,} steps, and training ends after {total:,}: "
        "the learning rate never reaches its peak; give a share, such as --schedule.warmup 1/5"
    )


def cosine(x: float) -> float:
    """Return the cosine of x in [0, pi] from its series: the C library's last bit depends on the
    CPU and on the library's version."""
    y = x - math.pi / 2
    total, term, k = 0.0, y, 1
    while abs(term) > 1e-18:
        total += term
        term *= -y * y / ((k + 1) * (k + 2))
        k += 2
    return -total


def power(base: float, exponent: float) -> float:
    """Return base ** exponent, both not negative, from products and square roots: a whole part by
    squaring, and the 40 binary digits after the point by taking roots."""
    whole, result, square = int(exponent), 1.0, base
    rest, root = exponent - whole, base
    while whole:
        result *= square if whole & 1 else 1.0
        square, whole = square * square, whole >> 1
    for _ in range(40):
        rest, root = 2 * rest, math.sqrt(root)
        if rest >= 1:
            rest, result = rest - 1, result * root
    return result


class Rates(NamedTuple, Generic[Number]):
    """The numbers of an update that depend on the step.

    They are floats; in a graph, tensors; and the columns of a table (`rates_table`), arrays. A
    named tuple can be an argument of a compiled function, a dataclass cannot.
    """

    learning_rate: Number
    bias_1: Number
    """Adam's bias correction of the momentum. Other rules ignore both corrections."""
    bias_2: Number
    """Adam's bias correction of the squares."""
    ema_decay: Number
    """How much of the moving average of the weights is kept; 1 leaves it unchanged."""
    groups: Sequence[Number]
    """The learning rate of each group, last that of all weights in no group."""

    @classmethod
    def of_row(cls, row: Any) -> Rates[Any]:
        """Name the numbers of a row, or the rows of a transposed table."""
        return Rates(row[0], row[1], row[2], row[3], row[4:])

    def row(self) -> tuple[Number, ...]:
        """Return the numbers in the order that `of_row` expects."""
        return (self.learning_rate, self.bias_1, self.bias_2, self.ema_decay, *self.groups)


def rates_at(experiment: Experiment, plan: Plan, step: int) -> Rates[float]:
    """Return the rates with which step `step` (from 0) is applied."""
    optimizer, schedule = experiment.optimizer, experiment.schedule
    batch_size = experiment.global_batch_size

    def group_rate(group: Group) -> float:
        end = round(group.until * plan.total_steps)
        rate = learning_rate(schedule, step, plan, batch_size, end)
        return group.rate * rate if step < end else 0.0

    return Rates(
        learning_rate=learning_rate(schedule, step, plan, batch_size),
        bias_1=bias_correction(optimizer.momentum, step + 1),
        bias_2=bias_correction(optimizer.beta_2, step + 1),
        ema_decay=_average_decay(experiment.average, step + 1, plan.total_steps),
        groups=tuple(group_rate(group) for group in groups_of(optimizer)),
    )


def rates_table(experiment: Experiment, plan: Plan, first: int, last: int) -> np.ndarray:
    """Return the rates of steps [first, last) as float32, a row for each step."""
    rows = [rates_at(experiment, plan, step).row() for step in range(first, last)]
    return np.array(rows, np.float32)


def bias_correction(beta: float, updates: int) -> float:
    """Return Adam's correction of a moving average that began at zero `updates` updates ago."""
    return 1 - power(beta, updates)


def _average_decay(average: Average, done: int, total_steps: int) -> float:
    if done % average.every:
        return 1.0
    return average.decay * power(done / total_steps, average.power)
