"""Actions: what the loop calls after each block of steps (`paceline.loop.Action`).

The builder of the list decides whether a worker writes at all, and the order of its actions:
`StopOnNonFiniteLoss` comes before `SaveCheckpoint`, what raises `StopRequested` is last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.loop import StopRequested
from paceline.maths.metrics import BlockResult, EvalResult, scalars
from paceline.maths.state import State
from paceline.messages import Block, Evaluation, Saved, Send, Warn
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.thumbnails import thumbnails

ReadImages = Callable[[str, np.ndarray], np.ndarray]
"""Split and indices of examples -> their images."""

SLOWER = "lower --schedule.rate, raise --schedule.warmup or set --optimizer.clip-norm"
NUM_WORST = 24
"""Mistakes of which the run keeps the images."""


class TrainingFailed(UserError):
    """Training cannot continue with these settings."""


class WriteMetrics:
    """Writes a line of metrics.jsonl for each block."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        record: dict[str, Any] = {**scalars(block, evaluation)}
        if block.events:
            record["events"] = list(block.events)
        self._run.metrics.append(record)


class WriteEvaluation:
    """Writes the predictions of the last evaluation, and the images of its worst mistakes."""

    def __init__(self, run: RunFolder, read_images: ReadImages) -> None:
        self._run = run
        self._read_images = read_images

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        if not evaluation:
            return
        split = "test" if "test" in evaluation.splits else "validation"
        examples = evaluation.splits[split].examples
        worst = examples.worst(NUM_WORST)
        images = np.zeros([0, 1, 1, 3], np.uint8)
        if len(worst):
            images = thumbnails(self._read_images(split, worst))
        record = {"step": block.step, "split": split, "worst": worst, "pictures": images}
        self._run.predictions.write(record | vars(examples))


class SaveCheckpoint:
    """Saves when the plan says so. `save` saves at any step, but no step twice."""

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

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        if self._saves_at(block.step):
            self.save(block.step, evaluation)

    def save(self, step: int, evaluation: EvalResult | None) -> None:
        """Save the state after `step`; the best checkpoint is chosen by validation accuracy."""
        if step == self._saved_step:
            return
        state = self._get_state()
        assert state.step == step, f"the state is of step {state.step}, the loop at {step}"
        check_finite(state)
        validation = evaluation.splits.get("validation") if evaluation else None
        path = self._checkpoints.save(state, validation.accuracy if validation else None)
        self._publish()  # remote storage has it only now
        self._saved_step = step
        self._send(Saved(step, str(path)))


class StopOnNonFiniteLoss:
    """Ends training at the first loss that is NaN or infinite, before anything of it is saved."""

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        first_step = block.step - block.num_steps + 1
        for step, loss in enumerate(block.losses.tolist(), first_step):
            if not math.isfinite(loss):
                raise TrainingFailed(
                    f"the loss of step {step} is {loss}: training has diverged; {SLOWER} "
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


class StopAt:
    """Stops where `stops_at` (of the plan) says so, as an interruption would."""

    def __init__(self, stops_at: Callable[[int], bool]) -> None:
        self._stops_at = stops_at

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        if self._stops_at(block.step):
            raise StopRequested


class StopOnRequest:
    """Stops where all workers agreed to, or where `asked` says so in a worker that is alone."""

    def __init__(self, asked: Callable[[], bool] = lambda: False) -> None:
        self._asked = asked

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        if block.stop_requested or self._asked():
            raise StopRequested


class SendMetrics:
    """Sends the metrics of a block, and those of an evaluation, to the parent process."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        for event in block.events:
            self._send(Warn(event))
        self._send(Block(block.step, block.scalars(), evaluation is not None))
        if evaluation:
            self._send(Evaluation(block.step, evaluation.scalars()))


class Speed:
    """An action that measures training alone, without the first block, which compiles."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size = global_batch_size
        self._blocks: list[tuple[int, float]] = []
        """Of each block: images and seconds."""

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        images = block.num_steps * self._global_batch_size
        self._blocks.append((images, images / block.images_per_second))

    def images_per_second(self) -> float | None:
        blocks = self._blocks[1:] or self._blocks
        seconds = sum(seconds for _, seconds in blocks)
        return round(sum(images for images, _ in blocks) / seconds, 1) if seconds else None
