"""What is known of each trial: its state, its evaluations, and the best of all. It only reads."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paceline.errors import UserError
from paceline.experiment.plan import build_plan
from paceline.extras.search.options import Search, Trial
from paceline.extras.search.search_folder import SearchFolder
from paceline.extras.search.space import Settings
from paceline.runs.finding import existing_run
from paceline.runs.folder import RunFolder
from paceline.runs.listing import train_command

State = Literal["finished", "stopped", "failed", "unfinished", "waiting"]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on the validation split."""

    step: int
    progress: float
    """Share of the training, 1 at its end."""
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
    step: int = 0
    """Last step that was evaluated."""
    accuracy: float | None = None
    """Best accuracy on the validation split."""
    loss: float | None = None
    """Smallest loss on the validation split."""
    state_sha256: str = ""
    """Digest of the state after its last step; empty if it has not finished."""
    note: str = ""
    """Why it failed."""
    command: str = ""
    """The command that trains the same experiment by itself."""
    evaluations: tuple[Evaluation, ...] = field(default=(), repr=False)

    @property
    def epochs(self) -> float:
        """Return how many epochs were trained and evaluated."""
        return self.evaluations[-1].epoch if self.evaluations else 0.0


def read_trials(search: Search, folder: SearchFolder) -> list[TrialSummary]:
    """Return all trials, the best first: finished ones, then others, each by the metric."""
    found = [_summary(search, folder, trial) for trial in search.trials]
    return sorted(found, key=lambda each: rank(each, search.options.metric))


def rank(trial: TrialSummary, metric: str) -> tuple[bool, float, int]:
    """Return what trials are sorted by."""
    value = getattr(trial, metric)
    if value is None or not math.isfinite(value):
        value = math.inf
    elif metric == "accuracy":
        value = -value
    return trial.state != "finished", value, trial.number


def read_evaluations(run: RunFolder) -> list[Evaluation]:
    """Return the evaluations of a run on its validation split."""
    size = run.data_facts().get("train")
    total = build_plan(run.experiment(), size).total_steps if size else 0
    return [
        Evaluation(
            record["step"],
            record["step"] / total if total else 0.0,
            record.get("epoch") or 0.0,
            _number(record["validation_accuracy"]),
            _number(record.get("validation_loss")),
        )
        for record in run.metrics.read()
        if record.get("validation_accuracy") is not None
    ]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _summary(search: Search, folder: SearchFolder, trial: Trial) -> TrialSummary:
    command = shlex.join(["paceline", *train_command(trial.job.experiment, search.recipe)])
    known = TrialSummary(trial.number, trial.settings, trial.run_dir, "waiting", command=command)
    try:
        run = existing_run(trial.run_dir, checkpoints=False)
    except UserError:
        if reason := folder.failed.get(trial.name):
            return replace(known, state="failed", note=reason)
        return known
    evaluations = read_evaluations(run)
    result = run.read_result() or {}
    finished = bool(result.get("finished"))
    state: State = "finished" if finished else "unfinished"
    if not finished and trial.name in folder.stopped:
        state = "stopped"
    elif not finished and trial.name in folder.failed:
        state = "failed"
    losses = [each.loss for each in evaluations if math.isfinite(each.loss)]
    return replace(
        known,
        state=state,
        step=evaluations[-1].step if evaluations else 0,
        accuracy=max((each.accuracy for each in evaluations), default=None),
        loss=min(losses, default=None),
        state_sha256=str(result.get("state_sha256") or "") if finished else "",
        note=folder.failed.get(trial.name, "") if state == "failed" else "",
        evaluations=tuple(evaluations),
    )


def best_of(trials: Sequence[TrialSummary]) -> TrialSummary | None:
    """Return the first of sorted trials, if it has been evaluated."""
    return trials[0] if trials and trials[0].evaluations else None
