"""The result of a training: what result.json contains, and whether a run needs no more training."""

from __future__ import annotations

from typing import Any

from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.plan import Plan
from paceline.loop import Outcome
from paceline.maths.state import State
from paceline.messages import Result, Send, Warn
from paceline.run_folder.actions import Speed
from paceline.run_folder.folder import RunFolder


def result_of(state: State, outcome: Outcome, plan: Plan, speed: Speed) -> dict[str, Any]:
    """Return the fields of result.json."""
    early = {"ended_early": True} if outcome.ended_early else {}
    test = outcome.evaluation.splits.get("test") if outcome.evaluation else None
    return {
        "step": state.step,
        "finished": state.step == plan.total_steps or bool(early),
        "test_accuracy": test.accuracy if test else None,
        "test_loss": test.loss if test else None,
        "images_per_second": speed.images_per_second(),
        "state_sha256": state.sha256(),
    } | early


def find_finished(run: RunFolder, experiment: Experiment, send: Send) -> Result | None:
    """Return the result of a run that has nothing left to do. Needs no TensorFlow.

    A damaged result.json is ignored: training writes it again from its last checkpoint.
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
