"""The engine protocol, and the table of engines. No TensorFlow.

An engine owns where the state is stored and how the vectors of the replicas meet, but not the loop,
the run folder or the maths.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from paceline.errors import UserError
from paceline.experiment.fields import Json, diff
from paceline.job import Job
from paceline.maths.metrics import BlockResult, EvalResult
from paceline.maths.state import State

if TYPE_CHECKING:
    from paceline.maths.replica import Core

WantsStop = Callable[[], bool]
"""Returns whether someone asked this worker to stop. An engine calls it before every block and
every turn of an evaluation. Each call also shows the parent process that the worker is active."""

ENGINES = {
    "collective": "paceline.engines.collective",
    "parameter_server": "paceline.engines_more.parameter_server.ps_engine",
    "ray": "paceline.engines_more.ray_actors.ray_engine",
}
"""Name -> the module whose `connect` begins it. It is imported only when it is used."""


class Engine(Protocol):
    """How the workers of a place advance a state together.

    All workers of a run make the same calls in the same order: `check`, `load`, then `advance` and
    `evaluate` until the plan ends, then `close`. The chief alone may call `state` at any time.
    An engine whose workers each hold the whole state also has `held` (`CollectiveEngine`).
    """

    def check(self, facts: Json) -> None:
        """Raise UserError if the workers' `fingerprint`s differ; `facts` is this worker's."""

    def load(self, state: State) -> State:
        """Continue from this state and return it. Several workers all continue from the chief's."""

    def advance(self, start: int, stop: int) -> BlockResult:
        """Train the steps [start, stop), or fewer if a worker wants to stop."""

    def state(self) -> State:
        """Return a copy of the current state."""

    def evaluate(self, final: bool) -> EvalResult:
        """Evaluate the current state (`maths.metrics.evaluate_splits`)."""

    def agree(self, own: bool) -> bool:
        """Return the chief's answer to a question that all workers ask at this point."""

    def close(self) -> None:
        """Release the workers. Every worker calls it, the chief after it has written everything."""


OpenEngine = Callable[["Core"], Engine]
"""Returns the engine that trains this core."""


def connect(job: Job, wants_stop: WantsStop) -> OpenEngine:
    """Set up TensorFlow's devices and connect to the other workers, before the first tensor."""
    found: OpenEngine = import_module(ENGINES[job.engine]).connect(job, wants_stop)
    return found


def check_facts(what: str, expected: Json, facts: Json) -> None:
    """Raise UserError, which begins with `what`, if the facts are not the expected ones."""
    if different := diff(expected, facts):
        needed = "experiment, data, libraries and kernels"
        if expected.get("cpu", "any") != "any":
            needed = f"{needed}, and the same CPU (bits: {expected.get('bits')})"
        raise UserError(f"{what}: {', '.join(different[:4])}; all workers need the same {needed}")
