"""Keras callbacks in a training of Paceline: an action that calls their hooks.

The model is in worker processes, so a callback gets a stand-in that only knows `stop_training`.
Callbacks that would change the training are refused, with the setting that does the same.
"""

import math
from collections.abc import Sequence
from typing import Any

from paceline.errors import UserError

REFUSED = {
    "EarlyStopping": "early stopping is part of the experiment, so that all places stop after the "
    "same step; use early_stopping=dict(patience=3) and data=dict(validation=1000)",
    "ReduceLROnPlateau": "the learning rate is part of the experiment; use schedule",
    "LearningRateScheduler": "the learning rate is part of the experiment; use schedule",
    "ModelCheckpoint": "the run folder keeps the newest and the best checkpoint; use keep and "
    "save_every, and paceline.export for a .keras file",
    "BackupAndRestore": "every run resumes from its last checkpoint; call train again",
    "TensorBoard": "the run folder has TensorBoard's files already, in events/",
    "SwapEMAWeights": "use average=dict(decay=0.999), whose average is then evaluated",
}
"""Callbacks of Keras that need the model -> what to do instead."""


class _Model:
    """Stands for the model. It is in the workers."""

    stop_training = False

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            f"a callback uses model.{name}, but the model is in the worker processes; a callback "
            "gets logs, and can set model.stop_training"
        )


class KerasCallbacks:
    """An action that calls the hooks of Keras callbacks.

    Called: on_train_begin, on_epoch_begin(epoch), on_test_begin and on_test_end(logs) after each
    evaluation, on_epoch_end(epoch, logs), on_train_end. Epochs count from 0. Hooks of single
    batches are not called, and callbacks that have them are refused.

    `logs` contains `loss` and `accuracy` (means over the epoch; after a resume, over its remaining
    steps), `learning_rate` (of the last step), and after an evaluation `val_loss`, `val_accuracy`
    and `val_top5` (of the validation split, or of the test split if there is none).

    If a callback sets `model.stop_training`, the run is interrupted.

    Args:
        callbacks: The callbacks, called in this order.

    Example:
        paceline.train("smoke", callbacks=[keras.callbacks.CSVLogger("log.csv")])
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._model = _Model()
        self._callbacks = list(callbacks)
        self._begun = False
        self._epoch = -1
        self._step = 0
        self._blocks: list[tuple[int, dict[str, float]]] = []
        """Number of steps and metrics of each block of the epoch so far."""
        self._logs: dict[str, float] = {}
        for callback in self._callbacks:
            _check(callback)

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Take the metrics of a block, with those of an evaluation if there was one."""
        epoch = float(metrics["epoch"])
        self._begin(epoch)
        self._blocks.append((step - self._step, metrics))
        self._step = step
        if logs := _evaluation_logs(metrics):
            self._logs |= logs
            self._call("on_test_begin", {})
            self._call("on_test_end", {name.removeprefix("val_"): logs[name] for name in logs})
        if epoch == int(epoch):
            total = sum(steps for steps, _ in self._blocks)
            means = {
                name: sum(steps * each[name] for steps, each in self._blocks) / total
                for name in ("loss", "accuracy")
            }
            rate = {"learning_rate": float(metrics["learning_rate"])}
            self._call("on_epoch_end", int(epoch) - 1, means | rate | self._logs)
            self._blocks, self._logs = [], {}
        if self._model.stop_training:
            raise StopIteration

    def start_at(self, step: int) -> None:
        """Note the step at which training begins or continues."""
        self._step = step

    def close(self) -> None:
        """Call on_train_end, if the training began."""
        if self._begun:
            self._begun = False
            self._call("on_train_end", {})

    def _begin(self, epoch: float) -> None:
        if not self._begun:
            self._begun = True
            for callback in self._callbacks:
                callback.set_params({"verbose": 0, "epochs": None, "steps": None})
                callback.set_model(self._model)
            self._call("on_train_begin", {})
        current = math.ceil(epoch) - 1  # the epoch of which the last step of this block is a part
        if current > self._epoch:
            self._epoch = current
            self._call("on_epoch_begin", current, {})

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(*arguments)


def _evaluation_logs(metrics: dict[str, float]) -> dict[str, float]:
    """Return the measures of an evaluation under Keras's names; empty if there was none."""
    split = "validation" if metrics.get("validation_loss") is not None else "test"
    found = {name: metrics.get(f"{split}_{name}") for name in ("loss", "accuracy", "top5")}
    return {f"val_{name}": float(value) for name, value in found.items() if value is not None}


def _check(callback: Any) -> None:
    """Raise UserError for a callback that needs what only Keras's own fit has."""
    import keras

    base, kind = keras.callbacks.Callback, type(callback)
    for each in kind.__mro__:
        if each.__name__ in REFUSED and each.__module__.startswith("keras"):
            raise UserError(
                f"the callback {each.__name__} cannot be used: {REFUSED[each.__name__]}"
            )
    if not isinstance(callback, base):
        raise UserError(f"callbacks has a {kind.__name__}; each must be a keras.callbacks.Callback")
    for hook in (name for name in vars(base) if "batch_" in name):
        if getattr(kind, hook) is not getattr(base, hook) or hook in vars(callback):
            raise UserError(
                f"the callback {kind.__name__} has {hook}, which is never called: many steps are "
                "one call into TensorFlow; use on_epoch_end"
            )
