"""The search folder and its trials: their state and evaluations, and which is better.

`search.json` says which search it is, and which trials ended before their last step: those that
the scheduler stopped, and those that failed. Everything else is in the run folders.
"""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paceline.errors import UserError
from paceline.experiment.fields import diff
from paceline.experiment.plan import build_plan
from paceline.extras.search.options import Options, SearchPlan, Trial
from paceline.extras.search.space import Settings
from paceline.run_folder.finding import existing_run
from paceline.run_folder.listing import train_command
from paceline.storage.files import explained, read_text, replacing, sealed, unsealed
from paceline.storage.locations import is_remote
from paceline.storage.lock import FileLock
from paceline.storage.remote import open_to_write

RECORD, PAGE = "search.json", "search.html"
RANKED_AT = (1 / 16, 1 / 4)
"""Fractions of a training after which asha ranks a trial."""


class SearchFolder:
    """The files of one search. Building one touches neither disk nor network."""

    def __init__(self, plan: SearchPlan) -> None:
        self.where, self._facts = plan.where, plan.facts
        self.stopped: dict[str, int] = {}
        """Runs that the scheduler stopped, and the step that decided it."""
        self.failed: dict[str, str] = {}
        """Runs that cannot be trained to their end, and why."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder, or check that it is of this search. Lock it if it is local."""
        with ExitStack() as at_end:
            if not is_remote(self.where):
                folder = Path(self.where)
                with explained("make", folder):
                    folder.mkdir(parents=True, exist_ok=True)
                    others = [file for file in folder.iterdir() if file.name != "lock"]
                if others and not (folder / RECORD).exists():
                    raise UserError(
                        f"{self.where} is not a search folder: it contains files but no {RECORD}; "
                        "use a new or empty --search-dir"
                    )
                lock = FileLock(folder / "lock", f"searching in {self.where}")
                lock.acquire(wait_s=10.0)  # processes of a killed search may need a moment to exit
                at_end.callback(lock.release)
            self._read()
            self.save()
            yield

    def save(self) -> None:
        """Write search.json, complete or not at all."""
        record = sealed(self._facts | {"stopped": self.stopped, "failed": self.failed})
        self.write(RECORD, json.dumps(record, indent=2))

    def write(self, name: str, text: str) -> None:
        """Write a file, complete or not at all."""
        data = text.encode(errors="backslashreplace")
        if is_remote(self.where):
            open_to_write(self.where).put(name, data)
            return
        path = Path(self.where, name)
        with explained("write", path), replacing(path) as file:
            file.write(data)

    def _read(self) -> None:
        """Take over what is known of the trials; raise UserError if it is of another search."""
        path = Path(self.where, RECORD)
        remote = is_remote(self.where)
        try:
            content = open_to_write(self.where).read(RECORD) if remote else read_text(path)
            if not content:
                return
            record = unsealed(json.loads(content))
        except (ValueError, AttributeError) as error:
            raise UserError(
                f"{self.where}/{RECORD} cannot be read ({error}); restore it from a copy, or use a "
                "different --search-dir"
            ) from error
        old = {name: record.get(name) for name in self._facts}
        if changes := diff(old, self._facts):
            raise UserError(
                f"{self.where} contains a different search: {'; '.join(changes[:4])}; use another "
                "--search-dir"
            )
        self.stopped, self.failed = dict(record["stopped"]), dict(record["failed"])


State = Literal["finished", "stopped", "failed", "unfinished", "waiting"]


@dataclass(frozen=True)
class TrialEvaluation:
    """An evaluation on the validation split, after the fraction `progress` of the training."""

    step: int
    epoch: float
    progress: float
    accuracy: float
    loss: float


def evaluation_of(record: Mapping[str, Any], total_steps: int) -> TrialEvaluation | None:
    """Return the evaluation in a record of metrics; None if it has none."""
    if record.get("validation_accuracy") is None:
        return None
    step, epoch, loss = record["step"], record.get("epoch") or 0.0, record.get("validation_loss")
    loss = math.nan if loss is None else loss
    return TrialEvaluation(step, epoch, step / total_steps, record["validation_accuracy"], loss)


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
    step: int = 0
    """The last step that was evaluated."""
    epochs: float = 0.0
    """How many epochs were trained and evaluated."""
    best_step: int = 0
    """Step of the best checkpoint on the validation split, which `eval` and `export` use."""
    accuracy: float | None = None
    """Accuracy of the best checkpoint on the validation split."""
    loss: float | None = None
    """Loss of the best checkpoint on the validation split, if it is a finite number."""


def read_trials(plan: SearchPlan, folder: SearchFolder) -> list[TrialSummary]:
    """Return all trials, the best first: finished ones, then others, each by their accuracy."""
    found = [_summary(plan, folder, trial) for trial in plan.trials]
    return sorted(found, key=lambda each: (each.state != "finished", -(each.accuracy or 0.0)))


def _summary(plan: SearchPlan, folder: SearchFolder, trial: Trial) -> TrialSummary:
    command = shlex.join(["paceline", *train_command(trial.job.experiment, plan.recipe)])
    note, where = folder.failed.get(trial.name, ""), trial.job.run.run_dir
    state: State = "failed" if note else "waiting"
    known = TrialSummary(trial.number, trial.settings, where, state, note, command)
    try:
        run = existing_run(where, checkpoints=False)
    except UserError:
        return known
    total_steps = build_plan(trial.job.experiment, run.data_facts()["train"]).total_steps
    found = (evaluation_of(record, total_steps) for record in run.metrics.read())
    result = run.read_result() or {}
    if result.get("finished"):
        state, note = "finished", ""
    elif trial.name in folder.stopped:
        state, note = "stopped", ""
    elif not note:
        state = "unfinished"
    digest = str(result.get("state_sha256") or "") if state == "finished" else ""
    known = replace(known, state=state, note=note, state_sha256=digest)
    evaluations = tuple(filter(None, found))
    if not evaluations:
        return known
    last, best = evaluations[-1], max(evaluations, key=lambda each: each.accuracy)
    return replace(
        known,
        evaluations=evaluations,
        step=last.step,
        epochs=last.epoch,
        best_step=best.step,
        accuracy=best.accuracy,
        loss=best.loss if math.isfinite(best.loss) else None,
    )


def is_done(trial: TrialSummary, options: Options) -> bool:
    """Return whether nothing is left to train. Without a scheduler, no trial stays stopped."""
    return trial.state in ("finished", "failed") or (
        trial.state == "stopped" and options.scheduler == "asha"
    )


def is_worse(trials: Mapping[int, Sequence[TrialEvaluation]], number: int) -> bool:
    """Return whether asha stops a trial after its newest evaluation.

    A trial is ranked when it reaches 1/16 and 1/4 of its training: among the first evaluations of
    all trials that have come that far. One in four continues.
    """
    before = trials[number][-2].progress if len(trials[number]) > 1 else 0.0
    now = trials[number][-1].progress
    reached = max((each for each in RANKED_AT if each <= now), default=0.0)
    if reached <= before or now >= 1:
        return False
    values = {
        other: next(_value(each) for each in evaluations if each.progress >= reached)
        for other, evaluations in trials.items()
        if evaluations and evaluations[-1].progress >= reached
    }
    num_better = sum(value > values[number] for value in values.values())
    return num_better >= len(values) / 4


def _value(evaluation: TrialEvaluation) -> tuple[float, float]:
    """Return what is compared, larger is better: the accuracy; if that is equal, the loss."""
    loss = math.inf if math.isnan(evaluation.loss) else evaluation.loss
    return evaluation.accuracy, -loss
