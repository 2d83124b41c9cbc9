"""Keras callbacks in a training of Paceline: which hooks are called, with which logs."""

import csv
from pathlib import Path
from typing import Any

import keras
import pytest

import paceline
from helpers import metrics_of, result_of
from paceline import EarlyStopping, KerasCallbacks, UserError
from paceline.extras.keras_callbacks import REFUSED
from paceline.run_folder.folder import RunFolder

SMALL = {"data": {"train_size": 36, "test_size": 16, "validation": 4}, "epochs": 3}
SMALL |= {"global_batch_size": 8, "progress": False}


class Diary(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def on_train_begin(self, logs=None):
        self.calls.append(("train begins",))

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(("epoch begins", epoch))

    def on_test_end(self, logs=None):
        self.calls.append(("test ends", logs))

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("epoch ends", epoch, logs))

    def on_train_end(self, logs=None):
        self.calls.append(("train ends",))


TRAINED = {"accuracy": 0.5, "learning_rate": 0.1}


def block(epoch: float, loss: float, **more: float) -> dict[str, float]:
    return TRAINED | {"epoch": epoch, "loss": loss} | more


def test_hooks_are_called_in_keras_order_with_means_over_the_epoch() -> None:
    diary = Diary()
    adapter = KerasCallbacks([diary])
    adapter.start_at(0)
    adapter(1, block(0.25, 4.0))
    adapter(4, block(1.0, 2.0, validation_loss=1.5, validation_accuracy=0.0, test_loss=9.0))
    adapter(8, block(2.0, 1.0))
    adapter.close()
    adapter.close()
    assert diary.calls == [
        ("train begins",),
        ("epoch begins", 0),
        ("test ends", {"loss": 1.5, "accuracy": 0.0}),
        ("epoch ends", 0, TRAINED | {"loss": 2.5, "val_loss": 1.5, "val_accuracy": 0.0}),
        ("epoch begins", 1),
        ("epoch ends", 1, TRAINED | {"loss": 1.0}),
        ("train ends",),
    ]


def test_a_callback_that_stops_training_stops_the_run() -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    with pytest.raises(StopIteration):
        KerasCallbacks([Stop()])(4, block(1.0, 2.0))


class ReadsWeights(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.get_weights()


class SeesBatches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (keras.callbacks.EarlyStopping, "use early_stopping=dict(patience=3)"),
        (keras.callbacks.ReduceLROnPlateau, "ReduceLROnPlateau cannot be used: the learning rate"),
        (lambda: keras.callbacks.ModelCheckpoint("x.keras"), "the newest and the best checkpoint"),
        (keras.callbacks.TerminateOnNaN, "TerminateOnNaN has on_batch_end, which is never called"),
        (SeesBatches, "SeesBatches has on_train_batch_end, which is never called"),
        (
            lambda: keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None),
            "LambdaCallback has on_train_batch_end",
        ),
        (lambda: print, "each must be a keras.callbacks.Callback"),
    ],
)
def test_callbacks_that_need_more_are_refused_with_a_reason(make, message: str) -> None:
    with pytest.raises(UserError) as error:
        paceline.train("smoke", callbacks=[make()])
    assert message in str(error.value)


def test_refused_callbacks_exist_in_keras_and_the_model_is_not_here() -> None:
    assert all(hasattr(keras.callbacks, name) for name in REFUSED)
    with pytest.raises(UserError, match="a callback uses model"):
        KerasCallbacks([ReadsWeights()])(4, block(1.0, 2.0))


@pytest.mark.slow
def test_a_training_calls_callbacks_and_ends_early_as_the_setting_says(library_here: Path) -> None:
    diary = Diary()
    log = keras.callbacks.CSVLogger("log.csv")
    result = paceline.train(
        "smoke", callbacks=[diary, log], early_stopping={"min_delta": 2.0, "patience": 1}, **SMALL
    )
    assert result.finished
    assert result.ended_early
    run = Path(result.run_dir)
    assert result_of(run)["step"] == result.step == 8  # after two of three epochs
    losses = [each["validation_loss"] for each in metrics_of(run) if "validation_loss" in each]
    with open("log.csv") as file:
        assert [float(row["val_loss"]) for row in csv.DictReader(file)] == losses
    epoch = ["epoch begins", "test ends", "epoch ends"]
    assert [call[0] for call in diary.calls] == ["train begins", *epoch, *epoch, "train ends"]
    assert RunFolder(run).experiment().early_stopping == EarlyStopping(1, min_delta=2.0)
