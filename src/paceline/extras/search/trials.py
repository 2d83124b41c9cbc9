"""The state and evaluations of each trial, read from the run folders, and the best trial."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from paceline.errors import UserError
from paceline.extras.search.options import Options, SearchPlan, Trial
from paceline.extras.search.search_folder import SearchFolder
from paceline.extras.search.space import Settings
from paceline.run_folder.finding import existing_run
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.listing import train_command

State = Literal["finished", "stopped", "failed", "unfinished", "waiting"]


@dataclass(frozen=True)
class TrialEvaluation:
    """An evaluation on the validation split."""

    step: int
    epoch: float
    accuracy: float
    loss: float


@dataclass(frozen=True)
class TrialSummary:
    """A trial: its settings and its result so far.

    `state` is finished, stopped (by the scheduler), failed, unfinished, or waiting (not begun).
    """

    number: int
    settings: Settings
    """Names of settings, as `paceline.train` takes them, and their values."""
    run_dir: str
    """Folder of its run, for `evaluate`, `predict`, `export`, `report` and `load`."""
    state: State
    note: str = ""
    """Why it failed."""
    command: str = ""
    """The command that trains the same experiment by itself."""
    state_sha256: str = ""
    """Digest of the state after its last step; empty if it has not finished."""
    evaluations: tuple[TrialEvaluation, ...] = field(default=(), repr=False)

    @property
    def step(self) -> int:
        """Return the last step that was evaluated."""
        return self.evaluations[-1].step if self.evaluations else 0

    @property
    def epochs(self) -> float:
        """Return how many epochs were trained and evaluated."""
        return self.evaluations[-1].epoch if self.evaluations else 0.0

    @property
    def accuracy(self) -> float | None:
        """Return the best accuracy on the validation split."""
        return max((each.accuracy for each in self.evaluations), default=None)

    @property
    def loss(self) -> float | None:
        """Return the smallest loss on the validation split."""
        finite = [each.loss for each in self.evaluations if math.isfinite(each.loss)]
        return min(finite, default=None)


def read_trials(plan: SearchPlan, folder: SearchFolder) -> list[TrialSummary]:
    """Return all trials, the best first: finished ones, then others, each by the metric."""
    found = [_summary(plan, folder, trial) for trial in plan.trials]
    return sorted(found, key=lambda each: _rank(each, plan.options.metric))


def _rank(trial: TrialSummary, metric: str) -> tuple[bool, float, int]:
    value = getattr(trial, metric)
    if value is None:
        value = math.inf
    elif metric == "accuracy":
        value = -value
    return trial.state != "finished", value, trial.number


def best_of(trials: Sequence[TrialSummary]) -> TrialSummary | None:
    """Return the first of sorted trials, if it has been evaluated."""
    return trials[0] if trials and trials[0].evaluations else None


def is_done(trial: TrialSummary, options: Options) -> bool:
    """Return whether nothing is left to train. Without a scheduler, no trial stays stopped."""
    stays = ("finished", "failed") + ("stopped",) * (options.scheduler == "asha")
    return trial.state in stays


def _summary(plan: SearchPlan, folder: SearchFolder, trial: Trial) -> TrialSummary:
    command = shlex.join(["paceline", *train_command(trial.job.experiment, plan.recipe)])
    reason = folder.failed.get(trial.name, "")
    state: State = "failed" if reason else "waiting"
    known = TrialSummary(trial.number, trial.settings, trial.run_dir, state, reason, command)
    try:
        run = existing_run(trial.run_dir, checkpoints=False)
    except UserError:
        return known
    known = replace(known, evaluations=_read_evaluations(run))
    result = run.read_result() or {}
    if result.get("finished"):
        digest = str(result.get("state_sha256") or "")
        return replace(known, state="finished", note="", state_sha256=digest)
    if trial.name in folder.stopped:
        return replace(known, state="stopped", note="")
    return known if reason else replace(known, state="unfinished")


def _read_evaluations(run: RunFolder) -> tuple[TrialEvaluation, ...]:
    return tuple(
        TrialEvaluation(
            record["step"],
            record.get("epoch") or 0.0,
            float(record["validation_accuracy"]),
            _number(record.get("validation_loss")),
        )
        for record in run.metrics.read()
        if record.get("validation_accuracy") is not None
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
