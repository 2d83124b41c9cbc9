"""What a training step reports beside its vectors (the tail), and the metrics of a block of steps.

This module imports no TensorFlow. The metrics of an evaluation are in `maths.evaluation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.maths.evaluation import EXAMPLES

if TYPE_CHECKING:
    from paceline.maths.replica import Core

Metrics = dict[str, Any]

SIGNALS = ("stop", "seconds")
"""What workers send each other: someone asked to stop, and how long a step took."""
TAIL = ("loss", "correct", "count", *SIGNALS)
"""The numbers at the end of a replica's vector, after its gradients and statistics."""
_MEANS = ("loss", "seconds")


def tail_scale(replicas: int) -> np.ndarray:
    """Return the factors that turn the mean of the replicas' tails into the tail of a step.

    Loss and seconds stay means over replicas; correct, count and stop become sums.
    """
    return np.array([1 if name in _MEANS else replicas for name in TAIL], np.float32)


def block_metrics(
    core: Core, step: int, tails: np.ndarray, table: np.ndarray, seconds: float
) -> Metrics:
    """Return the metrics of a block that ended at `step` and took `seconds` for each step.

    `tails` and `table` (learning rates first) have a row for each step of the block.
    """
    loss, accuracy, rates = tails[:, 0], tails[:, 1] / tails[:, 2], table[: len(tails), 0]
    return {
        "step": step,
        "epoch": step / core.plan.steps_per_epoch,
        "loss": float(loss.mean()),
        "accuracy": float(accuracy.mean()),
        "learning_rate": float(rates[-1]),
        "per_step": {
            "loss": loss.tolist(),
            "accuracy": accuracy.tolist(),
            "learning_rate": rates.tolist(),
        },
        "stop_requested": bool(tails[-1, TAIL.index("stop")]),
        "images_per_second": core.experiment.global_batch_size / seconds,
        "seconds_per_step": seconds,
    }


def scalars(metrics: Metrics) -> dict[str, Any]:
    """Return what is logged: all metrics but the lists of single steps and examples."""
    return {
        name: value
        for name, value in metrics.items()
        if name != "per_step" and not name.endswith(EXAMPLES)
    }


def measures(metrics: Metrics) -> dict[str, Any]:
    """Return what an evaluation measured; empty if there was none."""
    return {
        name: value
        for name, value in scalars(metrics).items()
        if name.startswith(("test_", "validation_"))
    }


def steps_of_block(step: int, metrics: Metrics) -> list[tuple[int, dict[str, float]]]:
    """Return (step, values) for each step of the block that ended at `step`."""
    per_step: dict[str, Any] = metrics.get("per_step", {})
    length = max((len(values) for values in per_step.values()), default=0)
    return [
        (step - length + i + 1, {name: float(values[i]) for name, values in per_step.items()})
        for i in range(length)
    ]
