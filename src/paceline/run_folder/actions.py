"""Actions: what the loop calls after each block of steps (`paceline.loop.Action`).

The builder of the list decides whether a worker writes at all, and the order of its actions:
`stop_on_bad_loss` comes before `SaveCheckpoint`, what raises `StopRequested` is last.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import UserError
from paceline.experiment.fields import Json
from paceline.maths.metrics import BlockResult, EvalResult, scalars
from paceline.maths.state import State
from paceline.messages import Block, Evaluated, Saved, Send, Warn
from paceline.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.maths.replica import Core

SLOWER = "lower --schedule.rate, raise --schedule.warmup or set --optimizer.clip-norm"
NUM_WORST = 24
"""Mistakes of which the run keeps the images."""


class TrainingFailed(UserError):
    """Training cannot continue with these settings."""


def stop_on_bad_loss(block: BlockResult, evaluation: EvalResult | None) -> None:
    """End training at the first loss that is NaN or infinite, before anything of it is saved."""
    for step, loss in enumerate(block.losses.tolist(), block.step - block.num_steps + 1):
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


def write_metrics(run: RunFolder, block: BlockResult, evaluation: EvalResult | None) -> None:
    """Write a line of metrics.jsonl."""
    record: Json = {**scalars(block, evaluation)}
    if block.events:
        record["events"] = list(block.events)
    run.metrics.append(record)


def send_metrics(send: Send, block: BlockResult, evaluation: EvalResult | None) -> None:
    """Send the metrics of a block, and those of an evaluation, to the parent process."""
    for event in block.events:
        send(Warn(event))
    send(Block(block.step, block.scalars(), evaluation is not None))
    if evaluation:
        send(Evaluated(block.step, evaluation.scalars()))


def write_evaluation(
    run: RunFolder, core: Core, block: BlockResult, evaluation: EvalResult | None
) -> None:
    """Write the predictions of the last evaluation, and the images of its worst mistakes."""
    if evaluation:
        split = "test" if "test" in evaluation.splits else "validation"
        examples = evaluation.splits[split].examples
        worst = examples.worst(NUM_WORST)
        images = _thumbnails(core, split, worst) if len(worst) else np.zeros([0, 1, 1, 3], np.uint8)
        record = {"step": block.step, "split": split, "worst": worst, "pictures": images}
        run.write_predictions(record | vars(examples))


def _thumbnails(core: Core, split: str, indices: np.ndarray, side: int = 96) -> np.ndarray:
    """Return examples of a split as they are evaluated, no larger than needed to recognize them."""
    import tensorflow as tf
    from PIL import Image

    from paceline.data.batches import evaluation_images

    where = tf.constant(indices, tf.int64)
    unconverted = tf.autograph.experimental.do_not_convert  # a killed worker would leave its files
    read = unconverted(core.splits[split].read)(where)[0]
    images = np.clip(unconverted(evaluation_images)(core.experiment, read).numpy(), 0, 255)
    height, width, channels = images.shape[1:]
    scale = min(1.0, side / max(height, width))
    size = round(width * scale), round(height * scale)
    small = [
        np.asarray(Image.fromarray(image.squeeze()).resize(size))
        for image in images.astype(np.uint8)
    ]
    return np.stack(small).reshape(len(images), size[1], size[0], channels)


class SaveCheckpoint:
    """Saves when the plan says so, and after the best evaluation of the validation split so far."""

    def __init__(self, chief: ChiefRun) -> None:
        self._chief = chief
        self._saved_step = -1

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        validation = evaluation.splits.get("validation") if evaluation else None
        is_best = validation and self._chief.checkpoints.is_best(validation.accuracy)
        if is_best or self._chief.core.plan.saves_at(block.step):
            self.save(block.step, evaluation)

    def save(self, step: int, evaluation: EvalResult | None) -> None:
        """Save the state after `step`, but no step twice."""
        if step == self._saved_step:
            return
        state = self._chief.engine.state()
        assert state.step == step, f"the state is of step {state.step}, the loop at {step}"
        check_finite(state)
        validation = evaluation.splits.get("validation") if evaluation else None
        self._chief.checkpoints.save(state, validation.accuracy if validation else None)
        self._chief.folder.publish()  # remote storage has it only now
        self._saved_step = step
        self._chief.send(Saved(step))


class Speed:
    """An action that measures training alone, without the first block, which compiles."""

    def __init__(self, global_batch_size: int) -> None:
        self._global_batch_size = global_batch_size
        self._num_blocks = self._images = 0
        self._seconds = 0.0

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        images = block.num_steps * self._global_batch_size
        if self._num_blocks == 1:
            self._images, self._seconds = 0, 0.0
        self._num_blocks += 1
        self._images += images
        self._seconds += images / block.images_per_second

    def images_per_second(self) -> float | None:
        return round(self._images / self._seconds, 1) if self._seconds else None
