"""Epochs -> steps: how long to train, after which steps to evaluate, save and stop, and the phases.

No TensorFlow. Nothing after this module counts in epochs.
"""

from dataclasses import dataclass

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.optimizer import groups_of

RECORD_EVERY = 100
"""Steps between two digests of the state. It takes as long as a step at most; see docs/trust.md."""


@dataclass(frozen=True)
class Plan:
    """All durations in steps. Code that reads the state waits until a round ends."""

    steps_per_epoch: int
    total_steps: int
    round_steps: int = 1
    evaluate_every: int = 0
    save_every: int = 0
    stop_at: int = 0
    act_every: int = 0
    """Steps between two calls of a user's actions. 0 calls them after every block."""

    def next_stop(self, step: int, block_steps: int = 1_000_000) -> int:
        """Return the step at which the block that starts at `step` ends."""
        blocks = max(1, block_steps // self.round_steps) * self.round_steps
        every_few = self.evaluate_every, self.save_every, self.act_every
        intervals = (*every_few, self.steps_per_epoch, RECORD_EVERY)
        ends = [(step // every + 1) * every for every in intervals if every]
        ends += [self.stop_at] if self.stop_at > step else []
        return self._round_end(min([step + blocks, *ends]))

    def evaluates_at(self, step: int) -> bool:
        """Return whether the state after `step` steps is evaluated."""
        return step == self.total_steps or self._falls_on(step, self.evaluate_every)

    def saves_at(self, step: int) -> bool:
        """Return whether the state after `step` steps is saved."""
        is_last = step == self.total_steps or self.stops_at(step)
        return is_last or self._falls_on(step, self.save_every)

    def records_at(self, step: int) -> bool:
        """Return whether the digest of the state after `step` steps is recorded."""
        every = (self.save_every, RECORD_EVERY)
        return self.evaluates_at(step) or any(self._falls_on(step, each) for each in every)

    def acts_at(self, step: int) -> bool:
        """Return whether a user's actions are called after `step` steps."""
        return step == self.total_steps or self._falls_on(step, self.act_every or 1)

    def stops_at(self, step: int) -> bool:
        """Return whether --stop-at interrupts training after `step` steps."""
        return bool(self.stop_at) and step >= min(self._round_end(self.stop_at), self.total_steps)

    def _round_end(self, step: int) -> int:
        return min(-(-step // self.round_steps) * self.round_steps, self.total_steps)

    def _falls_on(self, step: int, every: int) -> bool:
        if not every or step % self.round_steps:
            return False
        return step // every > (step - self.round_steps) // every


def build_plan(
    experiment: Experiment, num_examples: int, stop_at: int = 0, act_every: int = 0
) -> Plan:
    """Return the plan of an experiment on `num_examples` training examples."""
    epoch = steps_per_epoch(experiment, num_examples)
    return Plan(
        steps_per_epoch=epoch,
        total_steps=experiment.steps or max(1, round(experiment.epochs * epoch)),
        round_steps=experiment.sync.every if experiment.sync.method == "weights" else 1,
        evaluate_every=_interval(experiment.evaluate_every, epoch),
        save_every=_interval(experiment.save_every, epoch),
        stop_at=stop_at,
        act_every=act_every,
    )


def steps_per_epoch(experiment: Experiment, num_examples: int) -> int:
    """Return the number of complete global batches in an epoch; the rest is left out."""
    steps = num_examples // experiment.global_batch_size
    if steps < 1:
        raise UserError(
            f"the data has {num_examples} training examples, fewer than one global batch of "
            f"{experiment.global_batch_size}; use a smaller --global-batch-size or more data"
        )
    return steps


def _interval(epochs: float, steps_per_epoch: int) -> int:
    return max(1, round(epochs * steps_per_epoch)) if epochs else 0


@dataclass(frozen=True)
class Phase:
    """Steps in which training images have one size and the same weights are trained. Each phase is
    compiled, so that frozen weights cost no gradient."""

    first: int
    image_size: int
    """Side of the training images; 0 is the usual size."""
    frozen: tuple[int, ...]
    """Numbers of the groups of weights that do not change."""


def build_phases(experiment: Experiment, plan: Plan) -> tuple[Phase, ...]:
    """Return the phases of a training. They begin with a round."""

    def first_round(steps: float) -> int:
        return -(-round(steps) // plan.round_steps) * plan.round_steps

    ends = [first_round(epochs * plan.steps_per_epoch) for epochs in experiment.augment.size_epochs]
    sizes = list(zip(experiment.augment.sizes, ends, strict=True))
    frozen_from = [
        0 if group.is_frozen else first_round(group.until * plan.total_steps)
        for group in groups_of(experiment.optimizer)
    ]
    return tuple(
        Phase(
            first,
            next((size for size, end in sizes if first < end), 0),
            tuple(number for number, start in enumerate(frozen_from) if first >= start),
        )
        for first in sorted({0, *ends, *frozen_from})
        if first < plan.total_steps
    )
