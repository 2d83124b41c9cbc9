"""Actions, a model and a data source of a user's own."""

import os
import signal
import time
from pathlib import Path

HERE = Path(__file__).parent


def wait_for_a_signal(step, metrics):
    """Wait after the first block for a SIGTERM; what else it does continues."""
    if (HERE / "reached").exists():
        return
    handler, received = signal.getsignal(signal.SIGTERM), []
    signal.signal(signal.SIGTERM, lambda *signal: (received.append(signal), handler(*signal)))
    (HERE / "reached").write_text(str(step))
    while not received:
        time.sleep(0.02)


def slowly(step, metrics):
    """Time enough for a signal to come before the last step."""
    (HERE / "reached").write_text(str(step))
    time.sleep(0.5)


def kill_at_the_end(step, metrics):
    if step == 24:
        os.kill(os.getpid(), signal.SIGKILL)


def write_down(step, metrics):
    with open(HERE / "written-down.txt", "a") as file:
        print(step, round(metrics["loss"], 4), file=file)


def forget(step, metrics):
    return {}["nothing here"]


def build_model(image_shape, num_classes):
    import keras

    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(4, 3, strides=4, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.1),
            keras.layers.Flatten(),
            keras.layers.Dense(num_classes),
        ]
    )


def build_model_of_wrong_shape(image_shape, num_classes):
    return build_model(image_shape, num_classes + 1)


def build_data(data):
    import numpy as np

    from paceline.data.source import Source, in_memory

    labels = np.arange(96, dtype=np.int32) % 3
    images = np.repeat(labels * 80, 8 * 8 * 3).reshape(96, 8, 8, 3).astype(np.uint8)
    train, test = in_memory(images, labels), in_memory(images[:7], labels[:7])
    return Source(train, test, ("dark", "grey", "bright"), (8, 8, 3))
