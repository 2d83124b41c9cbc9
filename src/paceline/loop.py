"""The training loop of every engine. It imports neither TensorFlow nor data nor models."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from paceline.engines.base import Engine
from paceline.experiment.plan import Plan
from paceline.maths.metrics import BlockResult, EvalResult

Action = Callable[[BlockResult, EvalResult | None], None]
"""Called after each block of steps, with the evaluation after it if there was one."""
EndsEarly = Callable[[EvalResult], bool]
"""Returns whether training ends after this evaluation. All workers return the same."""

BLOCK_SECONDS = 5.0


class StopRequested(Exception):
    """Raised by an action to end training after this block. Not an error."""


@dataclass(frozen=True)
class Outcome:
    """The last block of the loop, and the evaluation after it if there was one."""

    block: BlockResult | None = None
    evaluation: EvalResult | None = None

    @property
    def stop_requested(self) -> bool:
        """Return whether any worker was asked to stop."""
        return self.block is not None and self.block.stop_requested

    @property
    def ended_early(self) -> bool:
        """Return whether early stopping ended training."""
        return self.evaluation is not None and self.evaluation.ended_early


def train(
    engine: Engine,
    plan: Plan,
    actions: Sequence[Action],
    first_step: int = 0,
    ends_early: EndsEarly | None = None,
    recovered: BlockResult | None = None,
) -> Outcome:
    """Train from `first_step` to the end of the plan, or until it ends early or an action stops it.
    `recovered` is a first block that was trained already, and after which nothing was done."""
    step, block_steps, outcome = first_step, 1, Outcome()
    with suppress(StopRequested):
        while step < plan.total_steps and not outcome.ended_early:
            block = recovered or engine.advance(step, plan.next_stop(step, block_steps))
            recovered, step, block_steps = None, block.step, next_block_steps(block)
            outcome = Outcome(block, _evaluate(engine, plan, step, ends_early))
            for action in actions:
                action(block, outcome.evaluation)
    return outcome


def next_block_steps(block: BlockResult) -> int:
    """Return twice the length of the last block, up to about `BLOCK_SECONDS`."""
    most = max(1, int(BLOCK_SECONDS / max(block.seconds_per_step, 1e-6)))
    return min(2 * block.num_steps + 1, most)


def _evaluate(
    engine: Engine, plan: Plan, step: int, ends_early: EndsEarly | None
) -> EvalResult | None:
    """Evaluate if the plan says so; return all splits if training ends here."""
    if not plan.evaluates_at(step):
        return None
    final = step == plan.total_steps
    evaluation = engine.evaluate(final)
    if final or not (ends_early and ends_early(evaluation)):
        return evaluation
    return replace(engine.evaluate(final=True), ended_early=True)
