"""The engine protocol.

An engine is how the workers of a place advance one state together. It owns where the state is
stored and how the vectors of the replicas meet. It does not own the loop, the run folder or the
maths: rounds, the sum over replicas, the metrics of a block and of an evaluation are in
`paceline.maths`, and all engines use them.

To add an engine: write a module with a function `connect`, add a line to the table
`paceline.engines.table.ENGINES`, and add a row to the tests. This module imports no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paceline.job import Job
from paceline.maths.evaluation import EvalResult
from paceline.maths.metrics import BlockResult
from paceline.maths.state import State

if TYPE_CHECKING:
    from paceline.maths.replica import Core

WantsStop = Callable[[], bool]
"""Returns whether someone asked this worker to stop. An engine calls it before every block and
every turn of an evaluation. Each call also shows the parent process that the worker is active."""


class Engine(Protocol):
    """How the workers of a place advance a state together.

    All workers of a run make the same calls in the same order: `check`, `load`, then `advance` and
    `evaluate` until the plan ends, then `close`. The chief alone may call `state` at any time.
    """

    def check(self, facts: dict[str, Any]) -> None:
        """Raise UserError if a worker would compute different bits than the others.

        `facts` are this worker's `fingerprint`.
        """
        ...

    def load(self, state: State) -> State:
        """Continue from this state and return it. Several workers all continue from the chief's."""
        ...

    def advance(self, start: int, stop: int) -> BlockResult:
        """Train the steps [start, stop), or fewer if a worker wants to stop."""
        ...

    def state(self) -> State:
        """Return a copy of the current state."""
        ...

    def evaluate(self, final: bool) -> EvalResult:
        """Evaluate the current state (`maths.evaluation.evaluate_splits`)."""
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


class Connection(Protocol):
    """The workers of a job, connected. TensorFlow's devices are set up; there is no tensor yet."""

    def open(self, core: Core) -> Engine:
        """Return the engine that trains this core."""
        ...


Connect = Callable[[Job, WantsStop], Connection]
"""The function `connect` of an engine's module."""
