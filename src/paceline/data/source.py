"""What a data set is to the program: sizes, class names and a function from indices to examples.

A source never shuffles, slices or augments; `order` and `augment` do. `read` is made of TensorFlow
ops only, because it runs inside compiled steps, and on parameter servers in a different process
than the one that built it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from paceline.errors import UserError

HOLD_OUT_KEY = (20_151_210, 1_512_033)
"""Fixed, so that the validation examples are the same whatever the experiment's seed."""


Read = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
Shape = tuple[int, int, int]
"""Height, width, channels."""


@dataclass(frozen=True)
class Split:
    """`size` examples. `read(indices)` takes int64 [n] and returns (raw, labels): raw is uint8 [n,
    height, width, channels], or strings [n] of encoded images; labels are int32 [n]."""

    size: int
    read: Read
    labels: Callable[[tf.Tensor], tf.Tensor] | None = None
    """Returns the labels alone, if that needs no reading of images."""


@dataclass(frozen=True)
class Source:
    """A training and a test split with class names; `image_shape` is None for encoded images."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    image_shape: Shape | None
    digest: str = ""
    """Of the content, or of a sample of it. A resumed run and all workers must have the same."""
    validation: Split | None = None
    """The data set's own, if it has three splits."""
    left_out: tuple[str, ...] = ()
    """One line for each bad example that is skipped."""


def in_memory(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer[Any]]) -> Split:
    """Return a split with its images, uint8 [n, height, width, channels], and labels as tensors."""
    all_images, all_labels = tf.constant(images, tf.uint8), tf.constant(labels, tf.int32)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.gather(all_images, indices), tf.gather(all_labels, indices)

    return Split(len(images), read)


def hold_out(source: Source, validation: int) -> tuple[Split, Split | None]:
    """Return the training split and the data set's own validation split, or else `validation`
    examples held out by a fixed permutation, which divides data sorted by class evenly."""
    whole, size = source.train, source.train.size
    if validation == 0 or source.validation:
        return whole, source.validation
    if not 0 < validation < size:
        raise UserError(
            f"data.validation is {validation}; of {size} training examples, 0 to {size - 1} can "
            "be held out"
        )

    def part(start: int, count: int) -> Split:
        def original(indices: tf.Tensor) -> tf.Tensor:
            positions, last = tf.cast(indices, tf.int64) + start, tf.constant(size - 1, tf.int64)
            return tf.random.experimental.index_shuffle(positions, HOLD_OUT_KEY, last)

        labels = whole.labels
        of_part = (lambda indices: labels(original(indices))) if labels else None
        return Split(count, lambda indices: whole.read(original(indices)), of_part)

    kept = size - validation
    return part(0, kept), part(kept, validation)
