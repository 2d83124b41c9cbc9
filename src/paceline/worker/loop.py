"""The one loop of every engine. It imports neither TensorFlow nor data nor models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from paceline.config.plan import Plan
from paceline.core.state import State

Metrics = dict[str, Any]
Action = Callable[[int, Metrics], None]  # called with the number of steps done

BLOCK_SECONDS = 5.0


class Engine(Protocol):
    """How the workers of a place advance a state together."""

    def load(self, state: State) -> State:
        """Go on from this state; where several workers meet, all from the chief's, which is answered."""
        ...

    def advance(self, start: int, stop: int) -> Metrics:
        """Train steps [start, stop), fewer when a worker wants to stop: mean metrics, `per_step` lists, the `step` reached, and
        what all workers agree on: `stop_requested` and `seconds_per_step`."""
        ...

    def state(self) -> State: ...

    def evaluate(self, final: bool) -> Metrics: ...

    def close(self) -> None:
        """Let the workers go: the chief has written everything."""
        ...


def block_metrics(plan: Plan, start: int, tails: np.ndarray, rates: np.ndarray) -> Metrics:
    """What every engine measures in a block, from a row [loss, correct, count ...] and one of rates for each of its steps."""
    step, loss, accuracy = start + len(tails), tails[:, 0], tails[:, 1] / tails[:, 2]
    return {
        "step": step,
        "epoch": step / plan.steps_per_epoch,
        "loss": float(loss.mean()),
        "accuracy": float(accuracy.mean()),
        "learning_rate": float(rates[len(tails) - 1, 0]),
        "per_step": {
            "loss": loss.tolist(),
            "accuracy": accuracy.tolist(),
            "learning_rate": rates[: len(tails), 0].tolist(),
        },
    }


def train(engine: Engine, plan: Plan, actions: Sequence[Action], first_step: int = 0) -> Metrics:
    """Train from `first_step` to the end of the plan; return the last metrics."""
    step, block_steps, metrics = first_step, 1, {}
    while step < plan.total_steps:
        metrics = engine.advance(step, plan.next_stop(step, block_steps))
        block_steps = min(
            2 * (metrics["step"] - step) + 1,
            max(1, int(BLOCK_SECONDS / max(metrics["seconds_per_step"], 1e-6))),
        )
        step = metrics["step"]
        if plan.evaluates_at(step):
            metrics |= engine.evaluate(final=step == plan.total_steps)
        for action in actions:
            action(step, metrics)
    return metrics
