"""What training steps report beside their vectors (tails), and the results of a block of steps and
of an evaluation. No TensorFlow.

Rows of evaluation batches are added in the order of the batches, so the result does not depend on
the number of workers. A row is [sums over the batch (`Sums`) | labels | predictions |
probabilities]; the last three have a number for each example. Labels are stored as float32, which
is exact up to 16 million.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from paceline.experiment.schedule import Rates, rates_table

if TYPE_CHECKING:
    from paceline.maths.replica import Core


class Tail(IntEnum):
    """The numbers after the gradients and statistics in a replica's vector; signatures follow."""

    LOSS = 0
    CORRECT = 1
    COUNT = 2
    STOP = 3
    """Whether this worker was asked to stop."""
    SECONDS = 4
    """How long a step took in this worker."""


SIGNALS = (Tail.STOP, Tail.SECONDS)
"""What workers send each other in a tail. The rest is computed from the examples."""


def tail_size(replicas: int) -> int:
    """Return the length of a tail: the numbers above and the signature of each replica."""
    return len(Tail) + replicas


def tail_scale(replicas: int) -> np.ndarray:
    """Return the factors that turn the mean of the replicas' tails into the tail of a step. Loss
    and seconds stay means over replicas; correct, count, stop and signatures become sums."""
    scale = np.full(tail_size(replicas), replicas, np.float32)
    scale[[Tail.LOSS, Tail.SECONDS]] = 1
    return scale


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
    signatures: np.ndarray = field(default_factory=lambda: np.zeros([0, 0], np.uint16))
    """A row for each step, with the signature of each replica (`maths.signatures`)."""

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
    """Return the result of a block that ended at `step` and took `seconds` for each step. `tails`
    has a row for each step of the block."""
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
        signatures=np.rint(tails[:, len(Tail) :]).astype(np.uint16),
    )


class Sums(IntEnum):
    """The numbers at the beginning of the row of an evaluation batch."""

    LOSS = 0
    CORRECT = 1
    AMONG_FIVE = 2
    COUNT = 3


@dataclass(frozen=True, eq=False)
class Examples:
    """The prediction for each example of a split, in the split's order."""

    labels: np.ndarray
    predictions: np.ndarray
    probabilities: np.ndarray
    """Probabilities of the predictions."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Examples) and all(
            map(np.array_equal, vars(self).values(), vars(other).values())
        )

    def confusion(self, num_classes: int) -> np.ndarray:
        """Return how often each class (row) was predicted as each class (column)."""
        counts = np.bincount(self.labels * num_classes + self.predictions, minlength=num_classes**2)
        return counts.reshape(num_classes, num_classes)

    def worst(self, most: int) -> np.ndarray:
        """Return the indices of the wrong predictions with the highest probabilities."""
        wrong = np.flatnonzero(self.labels != self.predictions)
        return wrong[np.argsort(-self.probabilities[wrong], kind="stable")][:most]


@dataclass(frozen=True)
class SplitResult:
    """What the evaluation of one split measured on its `count` examples."""

    loss: float
    accuracy: float
    top5: float
    count: int
    examples: Examples


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation measured, by split: test, validation or both."""

    splits: dict[str, SplitResult]
    ended_early: bool = False
    """Whether training ends after this evaluation (`early_stopping` of the experiment)."""

    def scalars(self) -> dict[str, float]:
        """Return the numbers of all splits, such as test_accuracy."""
        return {
            f"{split}_{name}": getattr(result, name)
            for split, result in self.splits.items()
            for name in ("accuracy", "loss", "top5", "count")
        }


def scalars(block: BlockResult, evaluation: EvalResult | None) -> dict[str, float]:
    """Return every number of a block and of the evaluation after it, by name."""
    return block.scalars() | (evaluation.scalars() if evaluation else {})


def num_batches(size: int, batch_size: int) -> int:
    """Return the number of batches of a split; the last one may be partly empty."""
    return -(-size // batch_size)


def evaluate_splits(
    core: Core, final: bool, rows_of: Callable[[str, int], np.ndarray]
) -> EvalResult:
    """Evaluate the validation split if there is one, otherwise the test split; at the end, all.

    `rows_of(split, count)` is the engine's part: the rows of the first `count` batches of a split,
    in their order. Rows beyond `count` are ignored.
    """
    names = [*core.splits] if final or "validation" not in core.splits else ["validation"]
    results = {}
    for split in names:
        count = num_batches(core.splits[split].size, core.eval_batch_size)
        results[split] = summarize(rows_of(split, count)[:count])
    return EvalResult(results)


def summarize(rows: np.ndarray) -> SplitResult:
    """Return the result of a split from the rows of its batches."""
    sums = np.cumsum(rows[:, : len(Sums)], axis=0, dtype=np.float64)[-1]
    count = int(sums[Sums.COUNT])
    labels, predictions, probabilities = (
        np.concatenate(column)[:count] for column in np.split(rows[:, len(Sums) :], 3, axis=1)
    )
    return SplitResult(
        loss=float(sums[Sums.LOSS] / count),
        accuracy=float(sums[Sums.CORRECT] / count),
        top5=float(sums[Sums.AMONG_FIVE] / count),
        count=count,
        examples=Examples(labels.astype(np.int64), predictions.astype(np.int64), probabilities),
    )
