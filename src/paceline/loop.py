"""The training loop of every engine. It imports neither TensorFlow nor data nor models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.engines.base import Engine
from paceline.experiment.plan import Plan
from paceline.maths.metrics import Metrics

Action = Callable[[int, Metrics], None]  # called with the number of steps done

BLOCK_SECONDS = 5.0


def train(engine: Engine, plan: Plan, actions: Sequence[Action], first_step: int = 0) -> Metrics:
    """Train from `first_step` to the end of the plan; return the last metrics."""
    step, metrics = first_step, Metrics()
    block_steps = 1
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
