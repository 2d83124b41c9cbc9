"""Actions: what happens between two blocks of training. An action is a callable `(step, metrics) -> None`.

`step` is the number of steps done. `metrics` has scalars of the block (`loss`, `accuracy`, `learning_rate`, `epoch`,
`images_per_second`), after an evaluation also `test_*` and `validation_*` (among them `test_examples`, what the model said of each
one: `evaluate.Examples`), and `per_step`: a value for each step of the block.
Whether a worker writes at all is decided by who builds the list of actions, and so is their order:
`StopOnNonFiniteLoss` before `SaveCheckpoint`, what raises `StopRequested` last.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paceline.core.evaluation import EXAMPLES
from paceline.core.state import State
from paceline.errors import UserError
from paceline.messages import Block, Evaluation, Saved, Send, Warn
from paceline.run_folder.checkpoint import Checkpoints
from paceline.run_folder.folder import RunFolder
from paceline.worker.loop import Action, Metrics

NUM_WORST = 24
"""Mistakes of which the run keeps the pictures."""


class TrainingFailed(UserError):
    """Training cannot go on with these settings."""


class StopRequested(Exception):
    """Not an error: someone wants training to stop after `step`. The one who catches it saves, with `SaveCheckpoint.save`."""

    def __init__(self, step: int, metrics: Metrics | None = None) -> None:
        super().__init__(f"stop requested after step {step}")
        self.step = step
        self.metrics = metrics or {}


def scalars(metrics: Metrics) -> dict[str, Any]:
    """What is logged: everything but the lists of single steps and examples."""
    return {
        name: value
        for name, value in metrics.items()
        if name != "per_step" and not name.endswith(EXAMPLES)
    }


def evaluation(metrics: Metrics) -> dict[str, Any]:
    """The part that an evaluation measured; empty where there was none."""
    return {
        name: value
        for name, value in scalars(metrics).items()
        if name.startswith(("test_", "validation_"))
    }


def steps_of_block(step: int, metrics: Metrics) -> list[tuple[int, dict[str, float]]]:
    """The values of each single step of the block that ended at `step`; the last of them belongs to `step` itself."""
    per_step: dict[str, Any] = metrics.get("per_step", {})
    length = max((len(values) for values in per_step.values()), default=0)
    return [
        (step - length + i + 1, {name: float(values[i]) for name, values in per_step.items()})
        for i in range(length)
    ]


class WriteMetrics:
    """A line of metrics.jsonl for each block."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def __call__(self, step: int, metrics: Metrics) -> None:
        self._run.metrics.append({"step": step} | scalars(metrics))


class WriteEvaluation:
    """What the model said of every example in the last evaluation, and its worst mistakes as pictures, for the report."""

    def __init__(
        self, run: RunFolder, pictures_of: Callable[[str, np.ndarray], np.ndarray]
    ) -> None:
        self._run, self._pictures_of = run, pictures_of

    def __call__(self, step: int, metrics: Metrics) -> None:
        for split in ("test", "validation"):
            if examples := metrics.get(f"{split}{EXAMPLES}"):
                worst = examples.worst(NUM_WORST)
                pictures = (
                    thumbnails(self._pictures_of(split, worst))
                    if len(worst)
                    else np.zeros([0, 1, 1, 3], np.uint8)
                )
                self._run.predictions.write(
                    {"step": step, "split": split, "worst": worst, "pictures": pictures}
                    | vars(examples)
                )
                return


class SaveCheckpoint:
    """Saves where the plan says so; `save` is also for who catches a `StopRequested`, and saves no step twice."""

    def __init__(
        self,
        get_state: Callable[[], State],
        checkpoints: Checkpoints,
        saves_at: Callable[[int], bool],
        send: Send = lambda message: None,
        publish: Callable[[], None] = lambda: None,
    ) -> None:
        self._get_state, self._checkpoints, self._saves_at = get_state, checkpoints, saves_at
        self._send, self._publish = send, publish
        self._saved_step: int | None = None

    def __call__(self, step: int, metrics: Metrics) -> None:
        if self._saves_at(step):
            self.save(step, metrics)

    def save(self, step: int, metrics: Metrics) -> None:
        if step == self._saved_step:
            return
        state = self._get_state()
        assert state.step == step, f"the state is of step {state.step}, the loop at {step}"
        path = self._checkpoints.save(state, metrics.get("validation_accuracy"))
        self._publish()  # on remote storage it is saved only now
        self._saved_step = step
        self._send(Saved(step, str(path)))


def thumbnails(pictures: np.ndarray, side: int = 96) -> np.ndarray:
    """Pictures, no larger than needed to recognise what they show."""
    from PIL import Image

    height, width, channels = pictures.shape[1:]
    scale = side / max(height, width)
    if scale >= 1:
        return pictures
    small = [
        Image.fromarray(picture.squeeze()).resize((round(width * scale), round(height * scale)))
        for picture in pictures
    ]
    return np.stack(
        [np.asarray(picture).reshape(*reversed(picture.size), channels) for picture in small]
    )


class StopOnNonFiniteLoss:
    """Ends training at the first loss that is no number, before anything of it is saved."""

    def __call__(self, step: int, metrics: Metrics) -> None:
        losses = [
            (at, values["loss"]) for at, values in steps_of_block(step, metrics) if "loss" in values
        ]
        losses.append((step, float(metrics.get("loss", 0.0))))
        for at, loss in losses:
            if not math.isfinite(loss):
                raise TrainingFailed(
                    f"the loss of step {at} is {loss}: training has diverged; lower --schedule.rate, raise --schedule.warmup "
                    "or set --optimizer.clip-norm (nothing of this was saved)"
                )


class UserAction:
    """A person's own action; its error is told with its name and place. `StopRequested` passes."""

    def __init__(self, spec: str, function: Action) -> None:
        self._spec, self._function = spec, function

    def __call__(self, step: int, metrics: Metrics) -> None:
        try:
            self._function(step, metrics)
        except StopRequested:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error).splitlines() or [""])[0]
            raise TrainingFailed(
                f"the action {self._spec} failed at step {step}: {type(error).__name__}: {reason} ({place.filename}:{place.lineno})"
            ) from error


class StopAt:
    """Stops where `stops_at` (of the plan) says so, as an interruption would."""

    def __init__(self, stops_at: Callable[[int], bool]) -> None:
        self._stops_at = stops_at

    def __call__(self, step: int, metrics: Metrics) -> None:
        if self._stops_at(step):
            raise StopRequested(step, metrics)


class StopOnRequest:
    """Stops where all workers agreed to, because one of them was asked. A worker that is alone need not ask the others: `asked`."""

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked = asked

    def __call__(self, step: int, metrics: Metrics) -> None:
        if metrics.get("stop_requested") or self._asked():
            raise StopRequested(step, metrics)


class SendMetrics:
    """Sends the metrics of a block, and those of an evaluation, to the parent process."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def __call__(self, step: int, metrics: Metrics) -> None:
        for event in metrics.get("events", ()):
            self._send(Warn(event))
        measured = evaluation(metrics)
        block = {name: value for name, value in scalars(metrics).items() if name not in measured}
        self._send(Block(step, _python_numbers(block)))
        if measured:
            self._send(Evaluation(step, _python_numbers(measured)))


def _python_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in values.items()
    }
