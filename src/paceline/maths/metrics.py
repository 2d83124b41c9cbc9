"""What training steps report beside their vectors (tails), and the result of a block of steps.

This module imports no TensorFlow. The result of an evaluation is in `maths.evaluation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from paceline.experiment.schedule import Rates, rates_table

if TYPE_CHECKING:
    from paceline.maths.evaluation import EvalResult
    from paceline.maths.replica import Core
    from paceline.maths.state import State


class Tail(IntEnum):
    """The numbers at the end of a replica's vector, after its gradients and statistics."""

    LOSS = 0
    CORRECT = 1
    COUNT = 2
    STOP = 3
    """Whether this worker was asked to stop."""
    SECONDS = 4
    """How long a step took in this worker."""


SIGNALS = (Tail.STOP, Tail.SECONDS)
"""The end of a tail: what workers send each other. The rest is computed from the examples."""


def tail_scale(replicas: int) -> np.ndarray:
    """Return the factors that turn the mean of the replicas' tails into the tail of a step.

    Loss and seconds stay means over replicas; correct, count and stop become sums.
    """
    means = (Tail.LOSS, Tail.SECONDS)
    return np.array([1 if column in means else replicas for column in Tail], np.float32)


@dataclass(frozen=True, eq=False)
class BlockResult:
    """What the training of a block of steps reports. Arrays have a number for each step."""

    step: int
    """The number of steps done at the end of the block."""
    epoch: float
    losses: np.ndarray
    accuracies: np.ndarray
    learning_rates: np.ndarray
    seconds_per_step: float
    """The same for all workers, because the length of the next block depends on it."""
    images_per_second: float
    stop_requested: bool = False
    """Whether a worker was asked to stop. The same for all workers."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Further numbers that an engine measures."""
    events: tuple[str, ...] = ()
    """What a person should know of this block, such as the loss of a worker."""

    @property
    def num_steps(self) -> int:
        """Return the length of the block."""
        return len(self.losses)

    def scalars(self) -> dict[str, float]:
        """Return the numbers of the whole block: means, and the last learning rate."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "loss": float(self.losses.mean()),
            "accuracy": float(self.accuracies.mean()),
            "learning_rate": float(self.learning_rates[-1]),
            "images_per_second": self.images_per_second,
            "seconds_per_step": self.seconds_per_step,
            **self.more,
        }

    def each_step(self) -> list[tuple[int, dict[str, float]]]:
        """Return (step, numbers) of each step."""
        columns = (self.losses.tolist(), self.accuracies.tolist(), self.learning_rates.tolist())
        names, first = ("loss", "accuracy", "learning_rate"), self.step - self.num_steps + 1
        return [
            (step, dict(zip(names, row, strict=True)))
            for step, row in enumerate(zip(*columns, strict=True), first)
        ]


def block_result(core: Core, step: int, tails: np.ndarray, seconds: float) -> BlockResult:
    """Return the result of a block that ended at `step` and took `seconds` for each step.

    `tails` has a row for each step of the block.
    """
    table = rates_table(core.experiment, core.plan, step - len(tails), step)
    return BlockResult(
        step=step,
        epoch=step / core.plan.steps_per_epoch,
        losses=tails[:, Tail.LOSS],
        accuracies=tails[:, Tail.CORRECT] / tails[:, Tail.COUNT],
        learning_rates=Rates.of_row(table.T).learning_rate,
        seconds_per_step=seconds,
        images_per_second=core.experiment.global_batch_size / seconds,
        stop_requested=bool(tails[-1, Tail.STOP]),
    )


def recovered_block(core: Core, state: State) -> BlockResult | None:
    """Return the result of the block that led to a state which survived the loss of a worker."""
    if not len(state.tails):
        return None
    return block_result(core, state.step, state.tails, float(state.tails[-1, Tail.SECONDS]))


def scalars(block: BlockResult, evaluation: EvalResult | None) -> dict[str, float]:
    """Return every number of a block and of the evaluation after it, by name."""
    return block.scalars() | (evaluation.scalars() if evaluation else {})
