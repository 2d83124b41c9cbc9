"""Keras callbacks in a training of Paceline: an action that calls their hooks.

The model is in worker processes, so a callback gets a stand-in that only knows `stop_training`.
Callbacks that would change the training are refused, with the setting that does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.errors import UserError

REFUSED = {
    "EarlyStopping": "early stopping is part of the experiment, so that all places stop after the "
    "same step; use early_stopping=dict(patience=3) and data=dict(validation=1000)",
    "ReduceLROnPlateau": "the learning rate of each step is part of the experiment, so that a "
    "resumed run has the same one; use schedule (steps, cosine, one-cycle)",
    "LearningRateScheduler": "the learning rate of each step is part of the experiment; use "
    "schedule (steps, cosine, one-cycle)",
    "ModelCheckpoint": "the run folder keeps the newest and the best checkpoint; use run.keep and "
    "save_every, and paceline.export for a .keras file",
    "BackupAndRestore": "every run resumes from its last checkpoint; call train again",
    "TensorBoard": "the run folder has TensorBoard's files already: paceline tensorboard RUN",
    "SwapEMAWeights": "use average=dict(decay=0.999), whose average is then evaluated",
}
"""Callbacks of Keras that need the model -> what to do instead."""
BATCH_HOOKS = tuple(
    f"on_{kind}batch_{when}"
    for kind in ("", "train_", "test_", "predict_")
    for when in ("begin", "end")
)
TRAIN_LOGS = ("loss", "accuracy")
SPLITS = ("validation", "test")


class _Model:
    """Stands for the model. It is in the workers."""

    def __init__(self) -> None:
        self.stop_training = False

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            f"a callback uses model.{name}, but the model is in the worker processes; a callback "
            "gets logs, and can set model.stop_training"
        )


class KerasCallbacks:
    """An action that calls the hooks of Keras callbacks.

    Called: on_train_begin, on_epoch_begin(epoch), on_test_begin and on_test_end(logs) after each
    evaluation, on_epoch_end(epoch, logs), on_train_end. Epochs count from 0.

    `logs` has `loss` and `accuracy`, the means over the steps of the epoch, `learning_rate` of its
    last step, and after an evaluation in the epoch `val_loss`, `val_accuracy` and `val_top5`, of
    the validation split or, without one, of the test split.

    Hooks of single batches are not called, and callbacks that have them are refused. A resumed run
    calls on_epoch_end first for the epoch in which it continues, with the steps that are left.

    If a callback sets `model.stop_training`, the run stops as after an interruption.

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
        self._sums: dict[str, float] = {}
        self._steps = 0
        self._logs: dict[str, float] = {}
        for callback in self._callbacks:
            _check(callback)

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Take the metrics of a block, with those of an evaluation if there was one."""
        epoch = float(metrics["epoch"])
        self._begin(epoch)
        self._add_block(step, metrics)
        if logs := _evaluation_logs(metrics):
            self._logs |= logs
            self._call("on_test_begin", {})
            self._call("on_test_end", {name.removeprefix("val_"): logs[name] for name in logs})
        if epoch == int(epoch):
            means = {name: total / self._steps for name, total in self._sums.items()}
            rate = {"learning_rate": float(metrics["learning_rate"])}
            self._call("on_epoch_end", int(epoch) - 1, means | rate | self._logs)
            self._sums, self._steps, self._logs = {}, 0, {}
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
        current = -int(-epoch // 1) - 1  # the epoch of which the last step of this block is a part
        if current > self._epoch:
            self._epoch = current
            self._call("on_epoch_begin", current, {})

    def _add_block(self, step: int, metrics: dict[str, float]) -> None:
        steps = step - self._step
        self._step = step
        self._steps += steps
        for name in TRAIN_LOGS:
            self._sums[name] = self._sums.get(name, 0.0) + steps * float(metrics[name])

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(*arguments)


def _evaluation_logs(metrics: dict[str, float]) -> dict[str, float]:
    """Return the measures of an evaluation under Keras's names; empty if there was none."""
    for split in SPLITS:
        found = {name: metrics.get(f"{split}_{name}") for name in ("loss", "accuracy", "top5")}
        if found["loss"] is not None:
            return {
                f"val_{name}": float(value) for name, value in found.items() if value is not None
            }
    return {}


def _check(callback: Any) -> None:
    """Raise UserError for a callback that needs what only Keras's own fit has."""
    import keras

    kinds = [
        kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith("keras")
    ]
    for kind in kinds:
        if kind in REFUSED:
            raise UserError(f"the callback {kind} cannot be used: {REFUSED[kind]}")
    if not isinstance(callback, keras.callbacks.Callback):
        raise UserError(
            f"callbacks has a {type(callback).__name__}; each must be a keras.callbacks.Callback"
        )
    base = keras.callbacks.Callback
    own = [
        hook
        for hook in BATCH_HOOKS
        if getattr(type(callback), hook) is not getattr(base, hook) or hook in vars(callback)
    ]
    if own:
        raise UserError(
            f"the callback {type(callback).__name__} has {own[0]}, which is never called: many "
            "steps are one call into TensorFlow; use on_epoch_end"
        )
