"""A run as the report tells it: everything that its folder says, read once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paceline.config.experiment import flatten
from paceline.config.plan import build_plan
from paceline.core.evaluation import Examples
from paceline.errors import UserError
from paceline.run_folder.folder import RunFolder

Points = list[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the model said of each example of a split when it was last evaluated, and its worst mistakes as pictures."""

    step: int
    split: str
    examples: Examples
    worst: np.ndarray
    """Indices of the mistakes, worst first."""
    pictures: np.ndarray
    """uint8 [mistakes, height, width, channels]"""


@dataclass(frozen=True)
class Attempt:
    """Training started at a step, after so many minutes, with so many workers; perhaps several times, until a save was reached."""

    step: int
    minute: float
    workers: int
    tries: int

    def who(self) -> str:
        return f"{self.workers} worker{'s' * (self.workers > 1)}" + (
            f", {self.tries} times" if self.tries > 1 else ""
        )


@dataclass(frozen=True, eq=False)
class Story:
    """One run. Curves are points (x, y) in order."""

    name: str
    experiment: dict[str, Any]
    data: dict[str, Any]
    versions: dict[str, str]
    records: list[dict[str, Any]]
    starts: list[dict[str, Any]]
    result: dict[str, Any]
    """Empty where no attempt has ended yet."""
    total_steps: int
    evaluation: Evaluation | None
    notes: list[str]

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.data.get("classes", [])]

    @property
    def step(self) -> int:
        return max(
            [record["step"] for record in self.records[-1:]] + [int(self.result.get("step") or 0)]
        )

    @property
    def finished(self) -> bool:
        return bool(self.result.get("finished"))

    def curve(self, name: str, x: str = "epoch") -> Points:
        """The values of a metric where it was measured."""
        return [
            (r[x], r[name])
            for r in self.records
            if r.get(name) is not None and r.get(x) is not None
        ]

    def last(self, name: str) -> float | None:
        """The result's value, or else the newest of the metrics."""
        value = self.result.get(name)
        return (
            value if value is not None else next((y for _, y in reversed(self.curve(name))), None)
        )

    @cached_property
    def split(self) -> str:
        """What was evaluated all along: the validation split where there is one."""
        return "validation" if self.curve("validation_loss") else "test"

    @cached_property
    def minutes(self) -> list[tuple[int, float]]:
        """After how many minutes of training each step was reached; evaluations, saves and pauses do not count."""
        reached, total, before = [(0, 0.0)], 0.0, 0
        for record in self.records:
            if speed := record.get("images_per_second"):
                total += (
                    (record["step"] - before) * self.experiment["global_batch_size"] / speed / 60
                )
            before = record["step"]
            reached.append((before, total))
        return reached

    def speeds(self) -> Points:
        """Images per second over minutes of training, each over a piece of time that a screen can show."""
        points, (step_before, minute_before), least = Points(), (0, 0.0), self.minutes[-1][1] / 120
        for step, minute in self.minutes[1:]:
            if minute - minute_before > least:
                images = (step - step_before) * self.experiment["global_batch_size"]
                points.append((minute, images / (minute - minute_before) / 60))
                step_before, minute_before = step, minute
        return points

    def attempts(self) -> list[Attempt]:
        """Each step at which training started or started again; what failed before the next save began at the same one."""
        steps, minutes = zip(*self.minutes, strict=True)
        tries = Counter(start["step"] for start in self.starts)
        last = {start["step"]: start for start in self.starts}
        return [
            Attempt(
                step,
                float(np.interp(step, steps, minutes)),
                int(last[step].get("workers") or 1),
                tries[step],
            )
            for step in sorted(last)
        ]

    def happenings(self) -> list[tuple[int, float, str]]:
        """Step, minute and text of what an engine told while it went on: workers that were lost, or came back."""
        at = dict(self.minutes)
        return [
            (r["step"], at[r["step"]], str(text))
            for r in self.records
            for text in r.get("events") or []
        ]


def read_story(run: RunFolder) -> Story:
    """Raises UserError where there is nothing to tell: the folder is damaged or of a newer Paceline."""
    config, experiment, notes = run.config(), run.experiment(), list[str]()
    try:
        result = run.read_result() or {}
    except UserError as error:
        result, notes = {}, [str(error)]
    data = config.get("data") if isinstance(config.get("data"), dict) else {}
    assert data is not None
    train_size = data.get("train")
    total = (
        build_plan(experiment, train_size).total_steps
        if isinstance(train_size, int)
        else experiment.steps
    )
    if reason := result.get("error"):
        notes.append(f"it ended with an error: {reason}")
    return Story(
        name=run.path.resolve().name,
        experiment=flatten(experiment.to_json()),
        data=data,
        versions=config.get("versions") or {},
        records=run.read_metrics(),
        starts=run.read_starts(),
        result=result,
        total_steps=total,
        evaluation=_read_evaluation(run),
        notes=notes,
    )


def _read_evaluation(run: RunFolder) -> Evaluation | None:
    arrays = run.read_evaluation()
    if arrays is None:
        return None
    try:
        examples = Examples(arrays["labels"], arrays["predictions"], arrays["probabilities"])
        return Evaluation(
            int(arrays["step"]), str(arrays["split"]), examples, arrays["worst"], arrays["pictures"]
        )
    except KeyError:  # of another version
        return None
