"""Step -> learning rate: pure Python, no TensorFlow. Epochs are turned into steps here and nowhere
later."""

from __future__ import annotations

import math

from paceline.config.experiment import Experiment, Schedule


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
) -> list[tuple[float, float, float]]:
    """For each step of a block: the learning rate and Adam's two bias corrections, which other
    rules ignore."""
    beta_1, beta_2 = experiment.optimizer.momentum, experiment.optimizer.beta_2
    return [
        (
            learning_rate(
                experiment.schedule,
                step,
                steps_per_epoch,
                total_steps,
                experiment.global_batch_size,
            ),
            1 - beta_1 ** (step + 1),
            1 - beta_2 ** (step + 1),
        )
        for step in range(start, stop)
    ]
