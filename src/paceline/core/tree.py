"""The sum over replicas in one fixed order: the range is halved again and again, and each pair is
added by itself.

Floating-point addition is not associative, so the order is part of the experiment. TensorFlow's
graph optimizer would turn (a+b)+(c+d) into one AddN with another order; it does not look into
functions that must not be inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def opaque(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function that the graph optimizer neither inlines nor merges with its
    surroundings."""
    compiled: Callable[..., Any] = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}, **options
    )
    return compiled


@opaque
def _add(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    return left + right


def tree_sum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of 1, 2, 4, 8 ... tensors by the tree. Sums of whole subtrees may be given in place
    of their leaves."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return _add(tree_sum(values[:half]), tree_sum(values[half:]))
