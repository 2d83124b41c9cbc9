"""The one loop of every engine. It imports neither TensorFlow nor data nor models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from paceline.config.plan import Plan
from paceline.core.metrics import Metrics
from paceline.core.state import State

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


def train(engine: Engine, plan: Plan, actions: Sequence[Action], first_step: int = 0) -> Metrics:
    """Train from `first_step` to the end of the plan; return the last metrics."""
    step, block_steps, metrics = first_step, 1, Metrics()
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
