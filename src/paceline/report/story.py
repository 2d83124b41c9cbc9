"""A run as the report tells it: everything that its folder says, read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.experiment import flatten
from paceline.plan import build_plan
from paceline.runs import RunFolder
from paceline.training.evaluate import Examples

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
        return max([record["step"] for record in self.records[-1:]] + [int(self.result.get("step") or 0)])

    @property
    def finished(self) -> bool:
        return bool(self.result.get("finished"))

    def curve(self, name: str, x: str = "epoch") -> Points:
        """The values of a metric where it was measured."""
        return [
            (r[x], r[name]) for r in self.records if isinstance(r.get(name), int | float) and isinstance(r.get(x), int | float)
        ]

    def last(self, name: str) -> float | None:
        """The result's value, or else the newest of the metrics."""
        value = self.result.get(name)
        return value if value is not None else next((y for _, y in reversed(self.curve(name))), None)

    @property
    def split(self) -> str:
        """What was evaluated all along: the validation split where there is one."""
        return "validation" if self.curve("validation_loss") else "test"

    @cached_property
    def minutes(self) -> list[tuple[int, float]]:
        """After how many minutes of training each step was reached; evaluations, saves and pauses do not count."""
        reached, total, before = [(0, 0.0)], 0.0, 0
        for record in self.records:
            if speed := record.get("images_per_second"):
                total += (record["step"] - before) * self.experiment["global_batch_size"] / speed / 60
            before = record["step"]
            reached.append((before, total))
        return reached

    def speeds(self) -> Points:
        """Images per second over minutes of training."""
        at = dict(self.minutes)
        return [(at[int(step)], speed) for step, speed in self.curve("images_per_second", "step")]

    def start_lines(self) -> list[tuple[float, str]]:
        """For each start: its minute, and with how many workers; the same start tried again at the same step is told once."""
        told: dict[int, dict[str, Any]] = {}
        tries: dict[int, int] = {}
        for start in self.starts:
            told[start["step"]] = start
            tries[start["step"]] = tries.get(start["step"], 0) + 1
        lines, steps, minutes = [], *zip(*self.minutes, strict=True)
        for step, start in sorted(told.items()):
            workers = start.get("workers", 1)
            again = f", {tries[step]} times" if tries[step] > 1 else ""
            text = f"{workers} worker{'s' * (workers > 1)}{again}"
            lines.append((float(np.interp(step, steps, minutes)), text if step == 0 else f"step {step}: {text}"))
        return lines


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
    total = build_plan(experiment, train_size).total_steps if isinstance(train_size, int) else experiment.steps
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
        return Evaluation(int(arrays["step"]), str(arrays["split"]), examples, arrays["worst"], arrays["pictures"])
    except KeyError:  # of another version
        return None
