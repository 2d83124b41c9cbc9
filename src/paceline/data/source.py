"""What a data set is to the rest of the program: sizes, class names and a function from indices to
examples.

A source never shuffles, slices or augments; `order` and `augment` do. `read` is made of TensorFlow
ops only, because it runs inside compiled steps, and on parameter servers in another process than
the one that built it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Split:
    """`size` examples. `read(indices)` takes int64 [n] and gives (raw, labels): raw is uint8 [n,
    height, width, channels], or strings [n] of encoded images; labels are int32 [n]."""

    size: int
    read: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
    labels: Callable[[tf.Tensor], tf.Tensor] | None = None
    """The labels alone, if they can be had without reading the images."""


@dataclass(frozen=True)
class Source:
    """A training and a test split with their class names; `image_shape` is None where images come
    encoded, in any size."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int] | None
    digest: str = ""
    """Of the content, or of samples of it. A resumed run and all workers must have the same."""
    file_sizes: str = ""
    """A digest of the sizes of all files, where `digest` has samples only."""
