"""The engine protocol.

An engine is how the workers of a place advance one state together. It owns where the state is
stored and how the vectors of the replicas meet. It does not own the loop, the run folder or the
maths: rounds, the sum over replicas, the metrics of a block and of an evaluation are in
`paceline.maths`, and all engines use them.

To add an engine: write a module with an `open_engine` function, add a line to the table
`paceline.engines.table.ENGINES`, and add a row to the tests. This module imports no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from paceline.job import Job
from paceline.maths.metrics import Metrics
from paceline.maths.state import State

if TYPE_CHECKING:
    from paceline.maths.replica import Core

BuildCore = Callable[[], "Core"]
"""Builds the core of the job. An engine calls it after it has configured its devices, because
building uses TensorFlow. The object-store engine also sends it to its actors, so it is picklable
and unpickling it does not import TensorFlow."""
WantsStop = Callable[[], bool]
"""Returns whether someone asked this worker to stop. An engine calls it before every block and
every turn of an evaluation. Each call also shows the parent process that the worker is active."""


class Engine(Protocol):
    """How the workers of a place advance a state together.

    All workers of a run make the same calls in the same order: `load`, then `advance` and
    `evaluate` until the plan ends, then `close`. The chief alone may call `state` at any time.
    """

    def load(self, state: State) -> State:
        """Continue from this state and return it. Several workers all continue from the chief's."""
        ...

    def advance(self, start: int, stop: int) -> Metrics:
        """Train the steps [start, stop), or fewer if a worker wants to stop.

        Returns `maths.metrics.block_metrics`. `step`, `stop_requested` and `seconds_per_step` are
        the same for all workers.
        """
        ...

    def state(self) -> State:
        """Return a copy of the current state."""
        ...

    def evaluate(self, final: bool) -> Metrics:
        """Evaluate the current state (`maths.evaluation.evaluate_splits`), and return metrics."""
        ...

    def agree(self, own: bool) -> bool:
        """Return the chief's answer to a question that all workers ask at this point."""
        ...

    def close(self) -> None:
        """Release the workers. Every worker calls it, the chief after it has written everything."""
        ...


@runtime_checkable
class HoldsState(Protocol):
    """An engine whose workers each hold the whole state, so that one of them is enough to go on."""

    def held(self) -> State | None:
        """Return the newest state of this worker with its tails; None if there is no whole one.

        Any thread may call it at any time, also while the engine waits for a worker that is lost.
        """
        ...


class OpenEngine(Protocol):
    """The function `open_engine` of an engine's module."""

    def __call__(
        self, job: Job, build_core: BuildCore, wants_stop: WantsStop
    ) -> tuple[Core, Engine]:
        """Connect the workers, configure the devices, then build the core and the engine.

        Raises UserError if a worker cannot take part or would compute other bits.
        """
        ...
