"""What every worker of a training does, chief or not: the loop until its end or a stop, its result.

`chief` adds what is written and shown, `follower` what the others report.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline import loop
from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Experiment
from paceline.job import Job
from paceline.loop import Action, Outcome
from paceline.maths.evaluation import EvalResult
from paceline.maths.metrics import BlockResult, recovered_block
from paceline.maths.state import State
from paceline.messages import Result, Send, Start, Warn
from paceline.runs.actions import StopAt, StopOnRequest
from paceline.runs.folder import RunFolder
from paceline.runs.stop_early import StopEarly

if TYPE_CHECKING:
    from paceline.engines.base import Engine
    from paceline.maths.replica import Core


@dataclass(frozen=True)
class Training:
    """The parts of a training in one worker."""

    job: Job
    core: Core
    engine: Engine
    send: Send
    stop: threading.Event
    """Set by a SIGTERM to this worker."""

    def start_message(self, first_step: int, who: str = "", run_dir: str = "") -> Start:
        from paceline.describe import summary_line

        plan, line = self.core.plan, who + summary_line(self.job, self.core)
        return Start(plan.total_steps, plan.steps_per_epoch, first_step, line, run_dir)

    def run(
        self, actions: Sequence[Action], state: State, validation: Sequence[float] = ()
    ) -> Outcome:
        """Train from the loaded state to the end of the plan, or until someone stops it.

        `validation` has the chief's values for early stopping, one for each earlier evaluation.
        """
        plan, engine, first_step = self.core.plan, self.engine, first_unreported(state)
        ends_early = StopEarly(self.job.experiment.early_stopping, engine.agree, validation)
        if first_step == plan.total_steps:  # it was stopped between its last step and its result
            return Outcome(evaluation=engine.evaluate(final=True))
        if ends_early.has_ended():
            return Outcome(evaluation=replace(engine.evaluate(final=True), ended_early=True))
        if plan.stops_at(first_step):
            return Outcome()  # an earlier command stopped here
        recovered = recovered_block(self.core, state) if len(state.tails) else None
        stops: list[Action] = [StopOnRequest(self._asked_alone), StopAt(plan.stops_at)]
        return loop.train(engine, plan, [*actions, *stops], first_step, ends_early, recovered)

    def _asked_alone(self) -> bool:
        """One worker alone stops at once; several agree in `Engine.advance`."""
        return self.job.cluster.num_workers == 1 and self.stop.is_set()

    def was_stopped(self, outcome: Outcome) -> bool:
        """Return whether a SIGTERM to any of the workers stopped the training."""
        return self.stop.is_set() or bool(outcome.block and outcome.block.stop_requested)

    def result(self, state: State, outcome: Outcome, speed: Speed) -> dict[str, Any]:
        """Return the fields of result.json."""
        early = {"ended_early": True} if outcome.ended_early else {}
        test = outcome.evaluation.splits.get("test") if outcome.evaluation else None
        return {
            "step": state.step,
            "finished": state.step == self.core.plan.total_steps or bool(early),
            "test_accuracy": test.accuracy if test else None,
            "test_loss": test.loss if test else None,
            "images_per_second": speed.images_per_second(),
            "state_sha256": state.sha256(),
        } | early


def first_unreported(state: State) -> int:
    """Return the step from which the metrics of a state are still to be written."""
    return state.step - len(state.tails)


class Speed:
    """An action that measures training alone, without the first block, which compiles."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size = global_batch_size
        self._blocks: list[tuple[int, float]] = []
        """Of each block: images and seconds."""

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        images = block.num_steps * self._global_batch_size
        self._blocks.append((images, images / block.images_per_second))

    def images_per_second(self) -> float | None:
        blocks = self._blocks[1:] or self._blocks
        seconds = sum(seconds for _, seconds in blocks)
        return round(sum(images for images, _ in blocks) / seconds, 1) if seconds else None


def find_finished(run: RunFolder, experiment: Experiment, send: Send) -> Result | None:
    """Return the result of a run that has nothing left to do. Needs no TensorFlow.

    A damaged result is none: the training computes it anew from its last checkpoint.
    """
    try:
        result = run.read_result() if run.exists() else None
    except PassingFault:
        raise
    except UserError as error:
        send(Warn(f"{error}: this happens now"))
        return None
    if not result or not result["finished"]:
        return None
    if run.experiment().changes_to(experiment):
        return None
    return Result(result | {"run_dir": run.where, "already": True})
