"""Images per second and core of the input path alone, beside a hand-written tf.data pipeline.

    python benchmarks/input_path.py FOLDER_OF_JPEGS

Both decode a random box of each JPEG, resize it to 224 pixels, flip half of the images and
normalize them, in batches of 64, on all cores. They take turns in one process. Paceline's batch is
a function of the step, so training resumes at any step with the same images. tf.data's pipeline
shuffles in a buffer, and nothing of it can be resumed exactly.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from paceline.data.batches import build_train_batches
from paceline.data.source import Split
from paceline.experiment.recipes.photos import imagenet_resnet50

BATCH, SIZE, STEPS, ROUNDS = 64, 224, 8, 7


def paceline(encoded: list[bytes]) -> Callable[[], object]:
    """Return a function that makes `STEPS` batches as a worker makes them in its graph."""
    strings = tf.constant(encoded)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(strings, indices % len(encoded)), tf.zeros_like(indices, tf.int32)

    experiment = replace(imagenet_resnet50(), global_batch_size=BATCH, replicas=1)
    split = Split(size=1_281_167, read=read)
    batch = build_train_batches(experiment, split, lambda labels: tf.one_hot(labels, 1000))
    prepared = tf.function(batch, autograph=False, experimental_attributes={"_noinline": True})

    @tf.function(autograph=False)
    def block(first: tf.Tensor) -> tf.Tensor:
        def body(step: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            images = prepared(step, tf.constant(0, tf.int64)).images
            return step + 1, total + images[0, 0, 0, 0]

        steps = [first, tf.constant(0.0)]
        return tf.while_loop(lambda s, _: s < first + STEPS, body, steps, parallel_iterations=2)[1]

    count = iter(range(0, 10**6, STEPS))
    return lambda: block(tf.constant(next(count), tf.int64)).numpy()


def tf_data(encoded: list[bytes], dct: str) -> Callable[[], object]:
    """Return a function that makes `STEPS` batches, decoding as the official models do."""
    mean = tf.constant([123.675, 116.28, 103.53])
    factor = 1 / tf.constant([58.395, 57.12, 57.375])

    def prepare(string: tf.Tensor) -> tf.Tensor:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(string),
            tf.zeros([1, 0, 4]),
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(string, window, channels=3, dct_method=dct)
        image = tf.image.random_flip_left_right(image)
        image = tf.image.resize(image, [SIZE, SIZE])
        return (tf.ensure_shape(image, [SIZE, SIZE, 3]) - mean) * factor

    cores = len(os.sched_getaffinity(0))
    images = tf.data.Dataset.from_tensor_slices(encoded).repeat().shuffle(len(encoded))
    images = images.map(prepare, num_parallel_calls=cores, deterministic=False).batch(BATCH)
    batches = images.take(STEPS).prefetch(2)  # it works only in its own turn
    return lambda: [float(batch[0, 0, 0, 0]) for batch in batches]


def main(folder: str) -> None:
    cores = len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    files = [path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")]
    encoded = [path.read_bytes() for path in sorted(files)]
    contenders = {
        "paceline": paceline(encoded),
        "tf.data accurate": tf_data(encoded, "INTEGER_ACCURATE"),
        "tf.data fast": tf_data(encoded, "INTEGER_FAST"),
    }
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(ROUNDS + 1):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            if number:  # the first round compiles
                found[name].append(BATCH * STEPS / (time.perf_counter() - began) / cores)
    own = found["paceline"]
    for name, rates in found.items():
        ratios = [ours / theirs for ours, theirs in zip(own, rates, strict=True)]
        median = statistics.median
        print(f"{name}: {median(rates):.0f} images/s per core; paceline / it: {median(ratios):.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
