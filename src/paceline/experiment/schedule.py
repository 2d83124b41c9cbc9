"""Step -> learning rate: pure Python, no TensorFlow. Epochs are turned into steps here and nowhere
later."""

from __future__ import annotations

import math

from paceline.experiment.experiment import Experiment, Schedule
from paceline.experiment.groups import parse_groups
from paceline.experiment.optimizer import Optimizer


def learning_rate(
    schedule: Schedule, step: int, steps_per_epoch: int, total_steps: int, global_batch_size: int
) -> float:
    """The rate with which step `step` (from 0) is applied."""
    peak = schedule.rate
    if schedule.scale_to_batch:
        peak *= global_batch_size / schedule.scale_to_batch
    rising = round(schedule.warmup * steps_per_epoch)
    if step < rising:
        return peak * (schedule.warmup_from + (1 - schedule.warmup_from) * (step + 1) / rising)
    return peak * _after_warmup(schedule, step, steps_per_epoch, rising, total_steps)


def _after_warmup(
    schedule: Schedule, step: int, steps_per_epoch: int, rising: int, total_steps: int
) -> float:
    if schedule.name == "steps":
        passed = sum(step >= round(boundary * steps_per_epoch) for boundary in schedule.boundaries)
        return schedule.factors[passed - 1] if passed else 1.0
    if schedule.name == "constant":
        return 1.0
    done = (step - rising) / max(1, total_steps - rising)
    left = (1 + math.cos(math.pi * done)) / 2 if schedule.name == "cosine" else 1 - done
    return schedule.final + (1 - schedule.final) * left


def rates(
    experiment: Experiment, start: int, stop: int, steps_per_epoch: int, total_steps: int
) -> list[tuple[float, ...]]:
    """For each step of a block: the learning rate and Adam's two bias corrections, which other
    rules ignore. If `has_more`, also the decay of the average and the rate of each group."""
    beta_1, beta_2 = experiment.optimizer.momentum, experiment.optimizer.beta_2
    groups = parse_groups(experiment.optimizer) if has_more(experiment.optimizer) else ()
    rows = []
    for step in range(start, stop):

        def rate(end: int, step: int = step) -> float:
            batch_size = experiment.global_batch_size
            return learning_rate(experiment.schedule, step, steps_per_epoch, end, batch_size)

        row = [rate(total_steps), 1 - beta_1 ** (step + 1), 1 - beta_2 ** (step + 1)]
        if groups:
            row.append(average_decay(experiment.optimizer, step, total_steps))
        for group in groups:
            end = round(group.until * total_steps)
            row.append(group.rate * rate(end) if step < end else 0.0)
        rows.append(tuple(row))
    return rows


FIRST_GROUP = 4
"""Place of the rate of the first group in a row of rates; before it, the decay of the average."""


def has_more(optimizer: Optimizer) -> bool:
    """Return whether rows of rates have the decay of the average and the rates of groups."""
    return bool(optimizer.groups) or optimizer.ema_every > 1 or optimizer.ema_power > 0


def average_decay(optimizer: Optimizer, step: int, total_steps: int) -> float:
    """Return the decay of the average of weights in step `step` (from 0); 1 leaves it."""
    done = step + 1
    if done % optimizer.ema_every:
        return 1.0
    return optimizer.ema * math.pow(done / total_steps, optimizer.ema_power)
