"""The one loop of every engine. It imports neither TensorFlow nor data nor models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.plan import Plan
from paceline.training.checkpoint import State

Metrics = dict[str, Any]
Action = Callable[[int, Metrics], None]

BLOCK_SECONDS = 5.0


class Engine(Protocol):
    """How the workers of a place advance a state together."""

    def load(self, state: State) -> None: ...

    def advance(self, start: int, stop: int) -> Metrics:
        """Train steps [start, stop): their mean metrics, `per_step` lists, and `seconds_per_step` on which all workers agree."""
        ...

    def state(self) -> State: ...

    def evaluate(self, final: bool) -> Metrics: ...

    def close(self) -> None: ...


def train(engine: Engine, plan: Plan, actions: Sequence[Action], first_step: int = 0) -> Metrics:
    """Train from `first_step` to the end of the plan; return the last metrics."""
    step, block_steps, metrics = first_step, 1, {}
    while step < plan.total_steps:
        stop = plan.next_stop(step, block_steps)
        metrics = engine.advance(step, stop)
        block_steps = min(2 * (stop - step) + 1, max(1, int(BLOCK_SECONDS / metrics["seconds_per_step"])))
        step = stop
        if plan.evaluates_at(step):
            metrics |= engine.evaluate(final=step == plan.total_steps)
        for action in actions:
            action(step, metrics)
    return metrics
