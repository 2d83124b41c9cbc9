"""Functions of the user that are called after each block (`--actions`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.experiment.user_code import load_function
from paceline.job import Job
from paceline.loop import StopRequested
from paceline.maths.metrics import BlockResult, EvalResult, scalars
from paceline.run_folder.actions import TrainingFailed
from paceline.run_folder.code_copies import locate

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.loop import Action

UserFunction = Callable[[int, dict[str, float]], None]
"""(steps done, numbers of the block and of the evaluation after it, by name) -> None"""


def load_user_actions(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Import the functions; return the function that builds their actions."""
    specs = job.run.actions
    actions = [UserAction(spec, load_function(locate(job, "actions", spec))) for spec in specs]
    return lambda chief: [*actions]


class UserAction:
    """A user's own action. It may raise `StopRequested`; an error names the action and its line."""

    def __init__(self, spec: str, function: UserFunction) -> None:
        self._spec, self._function = spec, function
        self.close: Callable[[], None] | None = getattr(function, "close", None)

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        try:
            self._function(block.step, scalars(block, evaluation))
        except StopRequested:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise TrainingFailed(
                f"the action {self._spec} failed at step {block.step}: {reason} "
                f"({frame.filename}:{frame.lineno})"
            ) from error
