"""Functions of the user that are called after each block (`--actions`).

A function with `wants_state = True` gets the weights too: a read-only copy of the vectors of the
state. With `--act-every N`, blocks end after every N steps, and functions are called only there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from paceline.experiment.user_code import in_own_code, load_function
from paceline.job import Job
from paceline.loop import StopRequested
from paceline.maths.metrics import BlockResult, EvalResult, scalars
from paceline.maths.state import State
from paceline.run_folder.actions import TrainingFailed
from paceline.run_folder.code_copies import locate

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.loop import Action

UserFunction = Callable[..., None]
"""(steps done, numbers of the block and of the evaluation after it, by name) -> None; with
`wants_state`, a third argument is the vectors by name, such as params and stats."""


def load_user_actions(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Import the functions; return the function that builds their actions."""
    found = {spec: load_function(locate(job, "actions", spec)) for spec in job.run.actions}
    return lambda chief: [
        UserAction(spec, function, chief.engine.state, chief.core.plan.acts_at)
        for spec, function in found.items()
    ]


class UserAction:
    """A user's own action. It may raise `StopRequested`; an error names the action and its line."""

    def __init__(
        self,
        spec: str,
        function: UserFunction,
        get_state: Callable[[], State],
        acts_at: Callable[[int], bool],
    ) -> None:
        self._spec, self._function = spec, function
        self._get_state, self._acts_at = get_state, acts_at
        self.close: Callable[[], None] | None = getattr(function, "close", None)

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        if not self._acts_at(block.step):
            return
        try:
            vectors = [self._read_state()] if getattr(self._function, "wants_state", False) else []
            self._function(block.step, scalars(block, evaluation), *vectors)
        except StopRequested:
            raise
        except Exception as error:
            what = f"the action {self._spec} failed at step {block.step}"
            raise TrainingFailed(f"{what}: {in_own_code(error)}") from error

    def _read_state(self) -> dict[str, np.ndarray]:
        """Return copies that cannot be written: what an action changes would be lost."""
        vectors = self._get_state().vectors
        for vector in vectors.values():
            vector.flags.writeable = False
        return vectors
