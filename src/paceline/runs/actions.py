"""Actions: callables `(step, metrics) -> None` that the loop calls between two blocks of training.

`step` is the number of steps done. `metrics` has scalars of the block (`loss`, `accuracy`,
`learning_rate`, `epoch`, `images_per_second`), after an evaluation also `test_*` and `validation_*`
(among them `test_examples`: the prediction for each example, `maths.evaluation.Examples`), and
`per_step`: a value for each step of the block.

The builder of the list decides whether a worker writes at all, and the order of its actions:
`StopOnNonFiniteLoss` comes before `SaveCheckpoint`, what raises `StopRequested` is last.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.loop import Action
from paceline.maths.evaluation import EXAMPLES
from paceline.maths.metrics import Metrics, measures, scalars, steps_of_block
from paceline.maths.state import State
from paceline.messages import Block, Evaluation, Saved, Send, Warn
from paceline.runs.checkpoints import Checkpoints
from paceline.runs.folder import RunFolder
from paceline.runs.thumbnails import thumbnails

ReadImages = Callable[[str, np.ndarray], np.ndarray]
"""Split and indices of examples -> their images."""

SLOWER = "lower --schedule.rate, raise --schedule.warmup or set --optimizer.clip-norm"
NUM_WORST = 24
"""Mistakes of which the run keeps the images."""


class TrainingFailed(UserError):
    """Training cannot continue with these settings."""


class StopRequested(Exception):
    """Not an error: someone wants training to stop after `step`."""

    def __init__(self, step: int, metrics: Metrics | None = None) -> None:
        super().__init__(f"stop requested after step {step}")
        self.step = step
        self.metrics = metrics or {}


class WriteMetrics:
    """Writes a line of metrics.jsonl for each block."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def __call__(self, step: int, metrics: Metrics) -> None:
        self._run.metrics.append({"step": step} | scalars(metrics))


class WriteEvaluation:
    """Writes the predictions of the last evaluation, and the images of its worst mistakes."""

    def __init__(self, run: RunFolder, read_images: ReadImages) -> None:
        self._run = run
        self._read_images = read_images

    def __call__(self, step: int, metrics: Metrics) -> None:
        for split in ("test", "validation"):
            if examples := metrics.get(f"{split}{EXAMPLES}"):
                worst = examples.worst(NUM_WORST)
                images = np.zeros([0, 1, 1, 3], np.uint8)
                if len(worst):
                    images = thumbnails(self._read_images(split, worst))
                record = {"step": step, "split": split, "worst": worst, "pictures": images}
                self._run.predictions.write(record | vars(examples))
                return


class SaveCheckpoint:
    """Saves at the steps of the plan; `save` saves at any other step, and no step twice."""

    def __init__(
        self,
        get_state: Callable[[], State],
        checkpoints: Checkpoints,
        saves_at: Callable[[int], bool],
        send: Send = lambda message: None,
        publish: Callable[[], None] = lambda: None,
    ) -> None:
        self._get_state = get_state
        self._checkpoints = checkpoints
        self._saves_at = saves_at
        self._send = send
        self._publish = publish
        self._saved_step: int | None = None

    def __call__(self, step: int, metrics: Metrics) -> None:
        if self._saves_at(step):
            self.save(step, metrics)

    def save(self, step: int, metrics: Metrics) -> None:
        if step == self._saved_step:
            return
        state = self._get_state()
        assert state.step == step, f"the state is of step {state.step}, the loop at {step}"
        check_finite(state)
        path = self._checkpoints.save(state, metrics.get("validation_accuracy"))
        self._publish()  # remote storage has it only now
        self._saved_step = step
        self._send(Saved(step, str(path)))


class StopOnNonFiniteLoss:
    """Ends training at the first loss that is NaN or infinite, before anything of it is saved."""

    def __call__(self, step: int, metrics: Metrics) -> None:
        losses = [
            (at, values["loss"]) for at, values in steps_of_block(step, metrics) if "loss" in values
        ]
        losses.append((step, float(metrics.get("loss", 0.0))))
        for at, loss in losses:
            if not math.isfinite(loss):
                raise TrainingFailed(
                    f"the loss of step {at} is {loss}: training has diverged; {SLOWER} "
                    "(nothing of this was saved)"
                )


def check_finite(state: State) -> None:
    """Raise TrainingFailed if the state has a NaN or an infinity, which a loss need not show."""
    for name, vector in state.vectors.items():
        if not np.isfinite(vector).all():
            raise TrainingFailed(
                f"the vector {name} has values that are not finite after step {state.step}: "
                f"training has diverged; {SLOWER} (nothing of this was saved)"
            )


class UserAction:
    """A user's own action. It may raise `StopRequested`; an error names the action and its line."""

    def __init__(self, spec: str, function: Action) -> None:
        self._spec, self._function = spec, function

    def close(self) -> None:
        """Call the action's own `close`, if it has one."""
        if close := getattr(self._function, "close", None):
            close()

    def __call__(self, step: int, metrics: Metrics) -> None:
        try:
            self._function(step, metrics)
        except StopRequested:
            raise
        except StopIteration as error:  # alone, it would leave the other workers waiting
            raise TrainingFailed(
                f"the action {self._spec} wants to stop at step {step}; an action of --actions "
                "cannot: use --early-stopping.patience, or actions= or callbacks= of paceline.train"
            ) from error
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error).splitlines() or [""])[0]
            raise TrainingFailed(
                f"the action {self._spec} failed at step {step}: "
                f"{type(error).__name__}: {reason} ({place.filename}:{place.lineno})"
            ) from error


class StopAt:
    """Stops where `stops_at` (of the plan) says so, as an interruption would."""

    def __init__(self, stops_at: Callable[[int], bool]) -> None:
        self._stops_at = stops_at

    def __call__(self, step: int, metrics: Metrics) -> None:
        if self._stops_at(step):
            raise StopRequested(step, metrics)


class StopOnRequest:
    """Stops where all workers agreed to, or where `asked` says so in a worker that is alone."""

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
        measured = measures(metrics)
        block = {name: value for name, value in scalars(metrics).items() if name not in measured}
        self._send(Block(step, _python_numbers(block), bool(measured)))
        if measured:
            self._send(Evaluation(step, _python_numbers(measured)))


def _python_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in values.items()
    }
