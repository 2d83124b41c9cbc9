"""Epochs -> steps: how long to train, and after which steps to evaluate, save and stop.

No TensorFlow. Nothing after this module counts in epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment


@dataclass(frozen=True)
class Plan:
    """All durations in steps. A round is the steps between two exchanges. Code that reads the state
    waits until the round ends."""

    steps_per_epoch: int
    total_steps: int
    round_steps: int = 1
    evaluate_every: int = 0
    save_every: int = 0
    stop_at: int = 0
    pauses: tuple[int, ...] = ()
    """Extra block boundaries, for the profiler."""

    def next_stop(self, step: int, block_steps: int = 1_000_000) -> int:
        """Return the step at which the block that starts at `step` ends."""
        blocks = max(1, block_steps // self.round_steps) * self.round_steps
        ends = [
            self._due(step, every)
            for every in (self.evaluate_every, self.save_every, self.steps_per_epoch)
            if every
        ]
        ends += [self._round_end(pause) for pause in (self.stop_at, *self.pauses) if pause > step]
        return min([self._round_end(step + blocks), self.total_steps, *ends])

    def evaluates_at(self, step: int) -> bool:
        """Return whether the state after `step` steps is evaluated."""
        return step == self.total_steps or self._falls_on(step, self.evaluate_every)

    def saves_at(self, step: int) -> bool:
        """Return whether the state after `step` steps is saved."""
        is_last = step == self.total_steps or self.stops_at(step)
        return is_last or self._falls_on(step, self.save_every)

    def stops_at(self, step: int) -> bool:
        """Return whether --stop-at interrupts training after `step` steps."""
        return bool(self.stop_at) and step >= min(self._round_end(self.stop_at), self.total_steps)

    def _round_end(self, step: int) -> int:
        return min(-(-step // self.round_steps) * self.round_steps, self.total_steps)

    def _due(self, step: int, every: int) -> int:
        return self._round_end((step // every + 1) * every)

    def _falls_on(self, step: int, every: int) -> bool:
        if not every or step % self.round_steps:
            return False
        return step // every > (step - self.round_steps) // every


def build_plan(
    experiment: Experiment, num_examples: int, stop_at: int = 0, pauses: tuple[int, ...] = ()
) -> Plan:
    """Return the plan of an experiment on `num_examples` training examples."""
    epoch = steps_per_epoch(experiment, num_examples)
    return Plan(
        steps_per_epoch=epoch,
        total_steps=total_steps(experiment, epoch),
        round_steps=experiment.sync.every if experiment.sync.method == "weights" else 1,
        evaluate_every=_interval(experiment.evaluate_every, epoch),
        save_every=_interval(experiment.save_every, epoch),
        stop_at=stop_at,
        pauses=pauses,
    )


def steps_per_epoch(experiment: Experiment, num_examples: int) -> int:
    """Return the number of complete global batches in an epoch; the rest is left out."""
    steps = num_examples // experiment.global_batch_size
    if steps < 1:
        raise UserError(
            f"the data has {num_examples} training examples, fewer than one global batch of "
            f"{experiment.global_batch_size}; give a smaller --global-batch-size or more data"
        )
    return steps


def total_steps(experiment: Experiment, steps_per_epoch: int) -> int:
    """Return the number of steps of the training."""
    return experiment.steps or max(1, round(experiment.epochs * steps_per_epoch))


def _interval(epochs: float, steps_per_epoch: int) -> int:
    return max(1, round(epochs * steps_per_epoch)) if epochs else 0
