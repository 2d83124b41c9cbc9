"""One run as the report needs it: reads the run folder and derives curves, speeds and starts."""

import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paceline.errors import UserError, public
from paceline.experiment.fields import Json, flatten
from paceline.experiment.plan import build_plan
from paceline.maths.metrics import Examples
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.listing import named_recipe, resume_command, train_command, with_data

Points = list[tuple[float, float]]

LARGEST = 1e100
"""Larger numbers, of a damaged record, cannot be drawn."""
MOST_CLASSES = 5_000
"""The confusion matrix of more classes is not shown: it would take gigabytes."""


@dataclass(frozen=True, eq=False)
class SavedEvaluation:
    """The last evaluation that training stored: each example of a split, and the worst mistakes."""

    step: int
    split: str
    examples: Examples
    worst: np.ndarray
    """Indices of the mistakes, worst first."""
    images: np.ndarray
    """The images of `worst`: uint8 [mistakes, height, width, channels]."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run. Curves are points (x, y) in order."""

    name: str
    settings: Json
    """The fields of the experiment by their dotted names."""
    data: Json
    records: list[Json]
    start_records: list[Json]
    result: Json
    """Empty if no attempt has ended yet."""
    total_steps: int
    evaluation: SavedEvaluation | None
    notes: list[str]
    recipe: str
    command: str
    """The recipe of the run, or the nearest, and the command that trains it again."""

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.data.get("classes", [])]

    @property
    def step(self) -> int:
        last = self.records[-1]["step"] if self.records else 0
        return max(last, int(self.result.get("step") or 0))

    @property
    def finished(self) -> bool:
        return bool(self.result.get("finished"))

    @property
    def digest(self) -> str:
        return str(self.result.get("state_sha256") or "")

    @cached_property
    def split(self) -> str:
        """Return the split that training evaluates: validation if there is one, else test."""
        return "validation" if self.curve("validation_loss") else "test"

    def curve(self, name: str) -> Points:
        """Return the values of a metric by epoch, where it was measured."""
        pairs = [(record.get("epoch"), record.get(name)) for record in self.records]
        return [(at, value) for at, value in pairs if at is not None and value is not None]

    def last(self, name: str) -> float | None:
        """Return the value in the result, or else the newest measurement."""
        if (value := self.result.get(name)) is not None:
            return value
        curve = self.curve(name)
        return curve[-1][1] if curve else None

    def evaluations(self) -> list[Json]:
        """Return the records with an evaluation."""
        return [record for record in self.records if f"{self.split}_loss" in record]

    @cached_property
    def minutes(self) -> dict[int, float]:
        """Return by step the minutes of training until it, without evaluations and pauses."""
        reached, total, before = {0: 0.0}, 0.0, 0
        for record in self.records:
            if (speed := record.get("images_per_second", 0.0)) > 0:
                images = (record["step"] - before) * self.settings["global_batch_size"]
                total += images / speed / 60
            before = record["step"]
            reached[before] = total
        return reached

    @property
    def training_minutes(self) -> float:
        return max(self.minutes.values())

    def speeds(self) -> Points:
        """Return images per second over minutes of training."""
        pairs = [(record["step"], record.get("images_per_second", 0.0)) for record in self.records]
        return [(self.minutes[step], speed) for step, speed in pairs if speed > 0]

    def events(self) -> list[tuple[int, float, str]]:
        """Return step, minute and text of each start, and of what an engine reported."""
        steps, minutes = list(self.minutes), list(self.minutes.values())
        starts = [(record["step"], record.get("workers") or 1) for record in self.start_records]
        found = [(at, f"started with {n} worker{'s' * (n != 1)}") for at, n in starts]
        for record in self.records:
            found += [(record["step"], str(text)) for text in record.get("events") or []]
        by_step = sorted(dict.fromkeys(found), key=lambda event: event[0])
        return [(step, float(np.interp(step, steps, minutes)), text) for step, text in by_step]


def read_run(run: RunFolder) -> RunData:
    """Read a run folder; raise UserError if it is damaged or written by a newer Paceline."""
    experiment, notes = run.experiment(), list[str]()
    try:
        result = run.read_result() or {}
    except UserError as error:
        result, notes = {}, [str(error)]
    if damaged := run.metrics.num_damaged() + run.starts.num_damaged():
        notes.append(f"{damaged} damaged lines of metrics.jsonl or starts.jsonl are left out")
    if reason := result.get("error"):
        notes.append(f"training ended with an error: {reason}")
    if run.is_locked():
        notes.append("It is training now; this page shows how far it was.")
    elif not result.get("finished"):
        command = shlex.join(resume_command(run.where, with_data(run, experiment)))
        notes.append(f"It is not finished; this command continues it: paceline {public(command)}")
    data = run.data_facts()
    if bad := result.get("left_out"):
        notes.append(f"{data.get('left_out')} bad examples were left out, such as {bad[0]}")
    if audits := [str(audit.get("finding", "")) for audit in run.audits.read()]:
        wrong = " and ".join(filter(None, audits))
        notes.append(f"an auditor trained {len(audits)} pieces again: {wrong or 'all are equal'}")
    records = [_numbers(record) for record in run.metrics.read()]
    if run.is_locked() or (records and records[-1]["step"] > int(result.get("step") or 0)):
        result = {}  # of an earlier attempt
    words = train_command(with_data(run, experiment), named_recipe(run.where))
    size = data.get("train")
    return RunData(
        name=run.path.resolve().name,
        settings=flatten(experiment.to_json()),
        data=data,
        records=records,
        start_records=run.starts.read(),
        result=result,
        total_steps=build_plan(experiment, size).total_steps if size else experiment.steps,
        evaluation=_read_evaluation(run) if len(data.get("classes", ())) <= MOST_CLASSES else None,
        notes=notes,
        recipe=words[1],
        command=f"paceline {public(shlex.join(words))}",
    )


def _numbers(record: Json) -> Json:
    """Return a record of metrics.jsonl without values that are neither numbers nor events."""

    def can_be_drawn(value: Any) -> bool:
        return type(value) in (int, float) and (value == 0 or 1 / LARGEST < abs(value) < LARGEST)

    return {
        name: value
        for name, value in record.items()
        if (name == "events" and isinstance(value, list)) or can_be_drawn(value)
    }


def _read_evaluation(run: RunFolder) -> SavedEvaluation | None:
    """Return the stored evaluation; None without one, or if its arrays do not fit together."""
    arrays = run.read_predictions()
    if arrays is None or not len(arrays.get("labels", ())):
        return None
    try:
        examples = Examples(arrays["labels"], arrays["predictions"], arrays["probabilities"])
        step, split = int(arrays["step"]), str(arrays["split"])
        saved = SavedEvaluation(step, split, examples, arrays["worst"], arrays["pictures"])
        return saved if _fits_together(saved) else None
    except (KeyError, TypeError, ValueError):
        return None


def _fits_together(saved: SavedEvaluation) -> bool:
    """Return whether the arrays have the types and shapes that training writes."""
    examples, worst, images = saved.examples, saved.worst, saved.images
    count = len(examples.labels)
    limits = ((examples.labels, MOST_CLASSES), (examples.predictions, MOST_CLASSES), (worst, count))
    return (
        all(array.ndim == 1 and array.dtype.kind in "iu" for array, _ in limits)
        and all(((array >= 0) & (array < most)).all() for array, most in limits)
        and examples.predictions.shape == examples.probabilities.shape == (count,)
        and examples.probabilities.dtype.kind == "f"
        and bool(np.isfinite(examples.probabilities).all())
        and images.dtype == np.uint8
        and (images.ndim, len(images)) == (4, len(worst))
        and images.shape[3] in (1, 3)
        and 0 not in images.shape[1:]
    )
