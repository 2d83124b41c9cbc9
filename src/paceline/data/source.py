"""What a data set is to the rest of the program: sizes, class names and a function from indices to
examples.

A source never shuffles, slices or augments; `order` and `augment` do. `read` is made of TensorFlow
ops only, because it runs inside compiled steps, and on parameter servers in a different process
than the one that built it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paceline.errors import UserError

HOLD_OUT_KEY = (20_151_210, 1_512_033)
"""Fixed, so that the validation examples are the same whatever the experiment's seed."""


@dataclass(frozen=True)
class Split:
    """`size` examples. `read(indices)` takes int64 [n] and returns (raw, labels): raw is uint8 [n,
    height, width, channels], or strings [n] of encoded images; labels are int32 [n]."""

    size: int
    read: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
    labels: Callable[[tf.Tensor], tf.Tensor] | None = None
    """Returns the labels alone, if that needs no reading of images."""


@dataclass(frozen=True)
class Source:
    """A training and a test split with their class names; `image_shape` is None if images are
    encoded, in any size."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int] | None
    digest: str = ""
    """Of the content, or of a sample of it. A resumed run and all workers must have the same."""


def in_memory(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer[Any]]) -> Split:
    """Return a split with its images, uint8 [n, height, width, channels], and labels as tensors."""
    all_images, all_labels = tf.constant(images, tf.uint8), tf.constant(labels, tf.int32)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(all_images, indices), tf.gather(all_labels, indices)

    return Split(len(images), read)


def hold_out(source: Source, validation: int) -> tuple[Split, Split | None]:
    """Return the training split in two parts, the second with `validation` examples.

    A fixed permutation decides, so that data sorted by class are divided evenly. With 0, the second
    part is None.
    """
    size = source.train.size
    if validation == 0:
        return source.train, None
    if not 0 < validation < size:
        raise UserError(
            f"data.validation is {validation}; of {size} training examples, 0 to {size - 1} can "
            "be held out"
        )
    kept = size - validation
    return _part(source.train, 0, kept), _part(source.train, kept, validation)


def _part(split: Split, start: int, size: int) -> Split:
    def original(indices: tf.Tensor) -> tf.Tensor:
        positions = tf.cast(indices, tf.int64) + start
        last = tf.constant(split.size - 1, tf.int64)
        return tf.random.experimental.index_shuffle(positions, HOLD_OUT_KEY, last)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return split.read(original(indices))

    labels = split.labels
    return Split(size, read, labels and (lambda indices: labels(original(indices))))
