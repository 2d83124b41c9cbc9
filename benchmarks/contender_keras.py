"""Keras `model.fit` on TensorFlow as a user would write it, in the default environment.

    python -m benchmarks.contender_keras DEPTH DATA_FOLDER

It uses Keras layers and a tf.data pipeline. All turns belong to one long `fit`, in which a callback
waits between turns. A new `fit` per turn would fill the shuffle buffer again each time, which would
count against Keras.
"""

import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import keras
import tensorflow as tf

from benchmarks.images import MEAN, STD, load_training_images
from benchmarks.protocol import Channel, Clock

GLOBAL_BATCH_SIZE = 128
STEPS_PER_EPOCH = 50_000 // GLOBAL_BATCH_SIZE


def training_batches(folder: str) -> tf.data.Dataset:
    pictures, labels = load_training_images(folder)

    def augment(picture: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        picture = tf.image.random_crop(tf.pad(picture, [[4, 4], [4, 4], [0, 0]]), (32, 32, 3))
        picture = tf.image.random_flip_left_right(picture)
        return (tf.cast(picture, tf.float32) - MEAN) / STD, label

    examples = tf.data.Dataset.from_tensor_slices((pictures, labels)).shuffle(len(labels)).repeat()
    return (
        examples.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(GLOBAL_BATCH_SIZE)
        .prefetch(tf.data.AUTOTUNE)
    )


def convolution(inputs: keras.KerasTensor, channels: int, strides: int = 1) -> keras.KerasTensor:
    hidden = keras.layers.Conv2D(
        channels,
        3,
        strides,
        "same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(5e-5),
    )(inputs)
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(hidden)


def build_model(depth: int) -> keras.Model:
    """Return the ResNet of the other contenders (shortcut A).

    The gradient of L2(5e-5) is 1e-4 w, which is a weight decay of 1e-4.
    """
    inputs = keras.Input((32, 32, 3))
    hidden = keras.layers.ReLU()(convolution(inputs, 16))
    for stage, width in enumerate((16, 32, 64)):
        for number in range((depth - 2) // 6):
            shortcut, strides = hidden, 2 if stage and number == 0 else 1
            hidden = keras.layers.ReLU()(convolution(hidden, width, strides))
            hidden = convolution(hidden, width)
            if strides > 1:
                new_channels = width - shortcut.shape[-1]
                shortcut = keras.ops.pad(
                    shortcut[:, ::2, ::2],
                    [[0, 0]] * 3 + [[new_channels // 2, new_channels - new_channels // 2]],
                )
            hidden = keras.layers.ReLU()(keras.layers.Add()([hidden, shortcut]))
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(hidden))
    return keras.Model(inputs, outputs)


class Turns(keras.callbacks.Callback):
    """Pauses `fit` until the harness asks for a turn, and answers after the last step of it."""

    def __init__(self) -> None:
        super().__init__()
        self._channel, self._steps_of_turn, self._steps_left = Channel(), 0, 0
        self._clock = Clock.start()

    def _wait(self) -> None:
        steps = self._channel.next_turn()
        self.model.stop_training = steps is None
        self._steps_of_turn = self._steps_left = steps or 0
        self._clock = Clock.start()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        if self._steps_of_turn == 0:
            self._wait()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._steps_left -= 1
        if self._steps_left == 0:
            self._channel.report(self._steps_of_turn * GLOBAL_BATCH_SIZE, *self._clock.read())
            self._wait()


def main() -> None:
    depth, folder = int(sys.argv[1]), sys.argv[2]
    model = build_model(depth)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        training_batches(folder),
        epochs=10**6,
        steps_per_epoch=STEPS_PER_EPOCH,
        verbose=2,
        callbacks=[Turns()],
    )


if __name__ == "__main__":
    main()
