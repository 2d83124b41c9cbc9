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
    actions: list[Action] = [
        UserAction(spec, load_function(locate(job, "actions", spec))) for spec in job.run.actions
    ]
    return lambda chief: actions


class UserAction:
    """A user's own action. It may raise `StopRequested`; an error names the action and its line."""

    def __init__(self, spec: str, function: UserFunction) -> None:
        self._spec, self._function = spec, function

    def close(self) -> None:
        """Call the action's own `close`, if it has one."""
        if close := getattr(self._function, "close", None):
            close()

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        step = block.step
        try:
            self._function(step, scalars(block, evaluation))
        except StopRequested:
            raise
        except StopIteration as error:  # alone, it would leave the other workers waiting
            raise TrainingFailed(
                f"the action {self._spec} wants to stop at step {step}; an action of --actions "
                "cannot: use --early-stopping.patience, or actions= or callbacks= of paceline.train"
            ) from error
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error).splitlines() or [""])[0]
            raise TrainingFailed(
                f"the action {self._spec} failed at step {step}: "
                f"{type(error).__name__}: {reason} ({frame.filename}:{frame.lineno})"
            ) from error
