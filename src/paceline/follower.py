"""The run of a worker that is not the chief: it trains the same steps and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from paceline.job import Job
from paceline.loop import Action, Outcome
from paceline.maths.metrics import BlockResult, EvalResult
from paceline.maths.state import State
from paceline.messages import Block, Result, Send
from paceline.run_folder.actions import Speed, StopEarly, stop_on_bad_loss
from paceline.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from paceline.engines.base import Engine
    from paceline.maths.replica import Core


class FollowerRun:
    """The base of `ChiefRun`. The engine brings a follower the chief's state and decisions."""

    core: Core
    engine: Engine

    def __init__(self, job: Job, send: Send) -> None:
        self.job = job
        self.send = send
        self.folder = RunFolder(job.run.run_dir)
        self.speed = Speed(job.experiment.global_batch_size)

    def lock(self, at_end: ExitStack) -> None:
        """The chief locks the run folder."""

    def was_finished(self) -> bool:
        """The chief finds out."""
        return False

    @contextmanager
    def begin(self, core: Core, engine: Engine) -> Iterator[None]:
        """Nothing is opened."""
        self.core, self.engine = core, engine
        yield

    def first_state(self) -> State:
        """Return a state that `Engine.load` replaces with the chief's."""
        return self.core.initial_state()

    def actions(self, state: State) -> list[Action]:
        """Report that training begins; return what a follower does after each block."""
        from paceline.describe import start_message

        name = f"worker {self.job.cluster.index}: "
        self.send(start_message(self.job, self.core, state.step, name))

        def report(block: BlockResult, evaluation: EvalResult | None) -> None:
            self.send(Block(block.step))

        return [stop_on_bad_loss, self.speed, report]

    def ends_early(self, state: State) -> StopEarly:
        """Return what asks the chief whether training ends early."""
        return StopEarly(self.job.experiment.early_stopping, self.engine.agree)

    def finish(self, state: State, outcome: Outcome) -> None:
        """Report the result, which is the chief's."""
        self.send(Result(self.result(state, outcome) | {"run_dir": self.folder.where}))

    def result(self, state: State, outcome: Outcome) -> dict[str, Any]:
        """Return the fields of result.json."""
        early = {"ended_early": True} if outcome.ended_early else {}
        test = outcome.evaluation.splits.get("test") if outcome.evaluation else None
        return {
            "step": state.step,
            "finished": state.step == self.core.plan.total_steps or bool(early),
            "test_accuracy": test.accuracy if test else None,
            "test_loss": test.loss if test else None,
            "images_per_second": self.speed.images_per_second(),
            "state_sha256": state.sha256(),
        } | early
