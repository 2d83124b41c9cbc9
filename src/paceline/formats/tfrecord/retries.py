"""Reading files in TensorFlow ops again after an error, with pauses that grow.

It is part of the graph, so that it also works where a chief of parameter servers sent the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops.testing import sleep

PAUSES_S = (0.3, 1.0, 3.0, 6.0)
"""Before each further try. Together they are shorter than any sensible --stall-timeout."""


def read_patiently(
    batch: tf.data.Dataset, unread: Any, is_unread: Callable[[Any], tf.Tensor]
) -> Any:
    """Return the one element of `batch`; if no try can read it, the tensors `unread`.

    The graph cannot tell a disk that fails from a damaged file, so that is tried again, too.
    """
    nothing = tf.data.Dataset.from_tensors(unread)
    pauses = tf.constant([int(1e6 * pause_s) for pause_s in PAUSES_S], tf.int64)

    def read(dataset: tf.data.Dataset) -> Any:
        return dataset.ignore_errors().concatenate(nothing).take(1).get_single_element()

    def wants_more(number: tf.Tensor, found: Any) -> tf.Tensor:
        return is_unread(found) & (number < len(PAUSES_S))

    def read_again(number: tf.Tensor, _: Any) -> Any:
        paused = tf.data.Dataset.from_tensors(0).apply(sleep(tf.gather(pauses, number))).take(1)
        return number + 1, read(paused.flat_map(lambda _: batch))

    return tf.while_loop(wants_more, read_again, (tf.constant(0), read(batch)))[1]
