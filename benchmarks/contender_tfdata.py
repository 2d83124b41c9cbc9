"""The tf.data pipeline that an experienced user writes for the TFRecords of ImageNet.

    python -m benchmarks.contender_tfdata plain|tuned SHARD_FOLDER

It has TensorFlow's default settings. `plain` subtracts means and divides by deviations in the usual
way, which takes a third of the whole time, because TensorFlow is slow if the inner dimension has
three channels. `tuned` does it by whole rows, as Paceline does.
Each turn has its own iterator and first takes some batches that do not count. An iterator that
lived between turns would fill its buffers during the turns of the other contenders. A consumer that
only waits leaves those buffers empty, so the start and the end of a turn are alike.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import tensorflow as tf

from benchmarks.pictures import BATCH_SIZE, MEAN, STD
from benchmarks.protocol import Channel, Clock

SHUFFLE_RECORDS = 1024
UNCOUNTED_BATCHES = 8
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def scale(picture: tf.Tensor) -> tf.Tensor:
    return (picture - MEAN) / STD


def scale_by_rows(picture: tf.Tensor) -> tf.Tensor:
    rows = tf.reshape(picture, (224, 224 * 3))
    return tf.reshape(
        (rows - tf.tile(tf.constant(MEAN), [224])) / tf.tile(tf.constant(STD), [224]), (224, 224, 3)
    )


SCALES = {"plain": scale, "tuned": scale_by_rows}


def prepare(record: tf.Tensor, kind: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode a random area of 8 to 100 %, aspect 3/4 to 4/3; flip, resize and scale it."""
    example = tf.io.parse_single_example(record, FEATURES)
    encoded = example["image/encoded"]
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.image.extract_jpeg_shape(encoded),
        tf.zeros([1, 0, 4]),
        min_object_covered=0.1,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    picture = tf.image.decode_and_crop_jpeg(
        encoded, tf.concat([begin[:2], size[:2]], 0), channels=3
    )
    picture = tf.image.random_flip_left_right(picture)
    picture = tf.ensure_shape(tf.image.resize(picture, (224, 224)), (224, 224, 3))
    return SCALES[kind](picture), example["image/class/label"]


def training_batches(folder: str, kind: str) -> tf.data.Dataset:
    """Return the data set, without a fixed order wherever tf.data is faster so."""
    files = sorted(str(path) for path in Path(folder).glob("train-*"))
    records = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    records = records.interleave(
        tf.data.TFRecordDataset,
        cycle_length=len(files),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=False,
    )
    examples = records.shuffle(SHUFFLE_RECORDS).map(
        partial(prepare, kind=kind), num_parallel_calls=tf.data.AUTOTUNE, deterministic=False
    )
    return examples.batch(BATCH_SIZE, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def main() -> None:
    channel, batches = Channel(), training_batches(sys.argv[2], sys.argv[1])
    while (steps := channel.next_turn()) is not None:
        iterator = iter(batches)
        for _ in range(UNCOUNTED_BATCHES):
            next(iterator)
        clock = Clock.start()
        for _ in range(steps):
            next(iterator)
        measured = clock.read()
        del iterator  # ends its threads
        channel.report(steps * BATCH_SIZE, *measured)


if __name__ == "__main__":
    main()
