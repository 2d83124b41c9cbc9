"""What every worker of a training does, chief or not: the loop until its end or a stop, its result.

`chief` adds what is written and shown, `follower` what the others report.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline import loop
from paceline.errors import PassingFault, UserError
from paceline.experiment.dataclass_json import differences
from paceline.experiment.experiment import Experiment
from paceline.job import Job
from paceline.maths.metrics import TAIL, Metrics, block_metrics
from paceline.maths.state import State
from paceline.messages import Result, Send, Start, Warn
from paceline.runs.actions import Action, StopAt, StopOnRequest, StopRequested
from paceline.runs.folder import RunFolder
from paceline.runs.stop_early import ENDED_EARLY, EndsEarly, stop_early

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
    ) -> Metrics:
        """Train from the loaded state to the end of the plan, or until someone stops it; return
        the last metrics.

        `validation` has the chief's values for early stopping, one for each earlier evaluation.
        """
        plan, first_step = self.core.plan, first_unreported(state)
        early = self.job.experiment.early_stopping
        engine = EndsEarly(self.engine, early, validation) if early.patience else self.engine
        if isinstance(engine, EndsEarly) and first_step < plan.total_steps and engine.has_ended():
            return engine.last_evaluation()
        if plan.stops_at(first_step) and first_step < plan.total_steps:
            return {}  # an earlier command stopped here
        stops: list[Action] = [StopOnRequest(self._asked_alone), StopAt(plan.stops_at), stop_early]
        try:
            engine = _Recovered(self.core, engine, state) if len(state.tails) else engine
            metrics = loop.train(engine, plan, [*actions, *stops], first_step)
        except StopRequested as request:
            return request.metrics
        if "test_accuracy" not in metrics:  # it was stopped between its last step and its result
            metrics |= self.engine.evaluate(final=True)
        return metrics

    def _asked_alone(self) -> bool:
        """One worker alone stops at once; several agree in `Engine.advance`."""
        return self.job.cluster.num_workers == 1 and self.stop.is_set()

    def was_stopped(self, metrics: Metrics) -> bool:
        """Return whether a SIGTERM to any of the workers stopped the training."""
        return self.stop.is_set() or bool(metrics.get("stop_requested"))

    def result(self, state: State, metrics: Metrics, speed: Speed) -> dict[str, Any]:
        """Return the fields of result.json."""
        early = {ENDED_EARLY: True} if metrics.get(ENDED_EARLY) else {}
        return {
            "step": state.step,
            "finished": state.step == self.core.plan.total_steps or bool(early),
            "test_accuracy": metrics.get("test_accuracy"),
            "test_loss": metrics.get("test_loss"),
            "images_per_second": speed.images_per_second(),
            "state_sha256": state.sha256(),
        } | early


class _Recovered:
    """An engine with the state that survived a lost worker, as it should have been in the loop.

    Its first block is the one that was interrupted: its steps are trained already, and what follows
    a block, such as an evaluation, a line of metrics or a checkpoint, is still to be done.
    """

    def __init__(self, core: Core, engine: Engine, state: State) -> None:
        self._core = core
        self._engine = engine
        self._state: State | None = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def advance(self, start: int, stop: int) -> Metrics:
        if not self._state:
            return self._engine.advance(start, stop)
        from paceline.maths.rounds import rates_of

        state, self._state = self._state, None
        seconds = float(state.tails[-1, TAIL.index("seconds")])
        table = rates_of(self._core, start, state.step)
        return block_metrics(self._core, state.step, state.tails, table, seconds)


def first_unreported(state: State) -> int:
    """Return the step from which the metrics of a state are still to be written."""
    return state.step - len(state.tails)


class Speed:
    """An action that measures training alone, without the first block, which compiles."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size = global_batch_size
        self._blocks: list[tuple[int, float]] = []
        """Of each block: images and seconds."""

    def __call__(self, step: int, metrics: Metrics) -> None:
        images = len(metrics["per_step"]["loss"]) * self._global_batch_size
        self._blocks.append((images, images / metrics["images_per_second"]))

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
    if differences(run.experiment().to_json(), experiment.to_json()):
        return None
    return Result(result | {"run_dir": run.where, "already": True})
