"""Actions: what happens between two blocks of training. An action is a callable `(step, metrics) -> None`.

`step` is the number of steps done. `metrics` has scalars of the block (`loss`, `accuracy`, `learning_rate`, `epoch`,
`images_per_second`), after an evaluation also `test_*` and `validation_*`, and `per_step`: a value for each step of the block.
Whether a worker writes at all is decided by who builds the list of actions, and so is their order:
`StopOnNonFiniteLoss` before `SaveCheckpoint`, what raises `StopRequested` last.
"""

from __future__ import annotations

import io
import math
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.runs import RunFolder, explained
from paceline.training.checkpoint import Checkpoints, State
from paceline.training.loop import Action, Metrics


class TrainingFailed(UserError):
    """Training cannot go on with these settings."""


class StopRequested(Exception):
    """Not an error: someone wants training to stop after `step`. The one who catches it saves, with `SaveCheckpoint.save`."""

    def __init__(self, step: int, metrics: Metrics | None = None) -> None:
        super().__init__(f"stop requested after step {step}")
        self.step = step
        self.metrics = metrics or {}


def scalars(metrics: Metrics) -> dict[str, Any]:
    """What is logged: everything but the lists of single steps."""
    return {name: value for name, value in metrics.items() if name != "per_step"}


def evaluation(metrics: Metrics) -> dict[str, Any]:
    """The part that an evaluation measured; empty where there was none."""
    return {name: value for name, value in metrics.items() if name.startswith(("test_", "validation_"))}


def steps_of_block(step: int, metrics: Metrics) -> list[tuple[int, dict[str, float]]]:
    """The values of each single step of the block that ended at `step`; the last of them belongs to `step` itself."""
    per_step: dict[str, Any] = metrics.get("per_step", {})
    length = max((len(values) for values in per_step.values()), default=0)
    return [(step - length + i + 1, {name: float(values[i]) for name, values in per_step.items()}) for i in range(length)]


class WriteMetrics:
    """A line of metrics.jsonl for each block."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def __call__(self, step: int, metrics: Metrics) -> None:
        self._run.append_metrics({"step": step} | scalars(metrics))


class SaveCheckpoint:
    """Saves where the plan says so; `save` is also for who catches a `StopRequested`, and saves no step twice."""

    def __init__(
        self,
        get_state: Callable[[], State],
        checkpoints: Checkpoints,
        saves_at: Callable[[int], bool],
        send: Callable[[dict[str, Any]], None] = lambda message: None,
    ) -> None:
        self._get_state, self._checkpoints, self._saves_at, self._send = get_state, checkpoints, saves_at, send
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
        self._saved_step = step
        self._send({"kind": "saved", "step": step, "path": str(path)})


class StopOnNonFiniteLoss:
    """Ends training at the first loss that is no number, before anything of it is saved."""

    def __call__(self, step: int, metrics: Metrics) -> None:
        losses = [(at, values["loss"]) for at, values in steps_of_block(step, metrics) if "loss" in values]
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
    """Stops after a given step, as an interruption would."""

    def __init__(self, stop: int) -> None:
        self._stop = stop

    def __call__(self, step: int, metrics: Metrics) -> None:
        if step >= self._stop:
            raise StopRequested(step, metrics)


class StopOnRequest:
    """Stops where all workers agreed to, because one of them was asked. A worker that is alone need not ask the others: `asked`."""

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked = asked

    def __call__(self, step: int, metrics: Metrics) -> None:
        if metrics.get("stop_requested") or self._asked():
            raise StopRequested(step, metrics)


class Report:
    """Tells the parent process, in the messages that `progress.Progress` shows."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send

    def __call__(self, step: int, metrics: Metrics) -> None:
        for event in metrics.get("events", ()):
            self._send({"kind": "warning", "text": event})
        measured = evaluation(metrics)
        block = {name: value for name, value in scalars(metrics).items() if name not in measured}
        self._send({"kind": "block", "step": step} | _python_numbers(block))
        if measured:
            self._send({"kind": "evaluation", "step": step} | _python_numbers(measured))


class TensorBoard:
    """Event files for TensorBoard, written without TensorFlow. No file before the first call.

    `first_step` is where training starts or goes on: events beyond it, of steps that are computed again, are hidden.
    """

    def __init__(self, events_dir: str | Path, first_step: int = 0) -> None:
        self._folder, self._first_step = Path(events_dir), first_step
        self._writer: Any = None

    def __call__(self, step: int, metrics: Metrics) -> None:
        with explained("write", self._folder):
            self._write_block(step, metrics)

    def _write_block(self, step: int, metrics: Metrics) -> None:
        single = steps_of_block(step, metrics)
        for at, values in single:
            self._write(at, [{"tag": name, "simple_value": value} for name, value in values.items()])
        shown = (
            ("images_per_second", "epoch") if single else ("loss", "accuracy", "learning_rate", "images_per_second", "epoch")
        )
        whole = {name: metrics[name] for name in shown if name in metrics} | evaluation(metrics)
        self._write(step, [{"tag": name, "simple_value": float(value)} for name, value in whole.items()])
        self._writer.flush()

    def image_grid(self, tag: str, pictures: np.ndarray, step: int | None = None) -> None:
        """Show pictures, uint8 [n, height, width, channels], as one."""
        grid = picture_grid(pictures)
        height, width, channels = grid.shape
        image = {"height": height, "width": width, "colorspace": channels, "encoded_image_string": _png(grid)}
        with explained("write", self._folder):
            self._write(self._first_step if step is None else step, [{"tag": tag, "image": image}])
            self._writer.flush()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with explained("write", self._folder):
                writer.close()

    def _write(self, step: int, values: list[dict[str, Any]]) -> None:
        if self._writer is None:
            self._writer = self._open()
        self._add(step=step, summary={"value": values})

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as EventProto

        self._writer.write(EventProto(wall_time=time.time(), **fields).SerializeToString())

    def _open(self) -> Any:
        # tensorboard's own EventFileWriter opens its file with TensorFlow.
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        # Read in the order of names. Numbers, because the clocks of two hosts may not agree which file is the later one.
        numbers = [int(path.suffix[1:]) for path in self._folder.glob("events.out.tfevents.*") if path.suffix[1:].isdigit()]
        path = self._folder / f"events.out.tfevents.{max(numbers, default=0) + 1:010d}"
        self._writer = RecordWriter(open(path, "xb"))  # noqa: SIM115
        self._add(file_version="brain.Event:2")
        # START hides the events of its own step too. Those of `first_step` stay; of step 0 there is nothing to keep.
        hidden_from = self._first_step + 1 if self._first_step else 0
        self._add(step=hidden_from, session_log=SessionLog(status=SessionLog.START))
        return self._writer


def picture_grid(pictures: np.ndarray, gap: int = 2) -> np.ndarray:
    """Pictures in rows of a nearly square white sheet."""
    count, height, width, channels = pictures.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    grid = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, channels), 255, dtype=np.uint8)
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        grid[top : top + height, left : left + width] = picture
    return grid


def _png(picture: np.ndarray) -> bytes:
    from PIL import Image  # comes with tensorboard

    buffer = io.BytesIO()
    Image.fromarray(picture[:, :, 0] if picture.shape[2] == 1 else picture).save(buffer, "PNG")
    return buffer.getvalue()


def _python_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}
