"""The sum over replicas in one fixed order: halve the range until pairs are left, and add pairs.

Floating-point addition is not associative, so the order is part of the experiment. TensorFlow's
graph optimizer would turn (a+b)+(c+d) into one AddN, which adds in another order. It does not look
into functions that are marked as not to be inlined.
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


def tree_sum(values: Sequence[Any], add: Callable[[Any, Any], Any] = _add) -> Any:
    """Return the sum of 1, 2, 4, 8 ... tensors by the tree, or of arrays with `add=np.add`.

    The sum of a whole subtree may take the place of its leaves.
    """
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return add(tree_sum(values[:half], add), tree_sum(values[half:], add))
