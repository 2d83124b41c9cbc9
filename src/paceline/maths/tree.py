"""The sum over replicas in one fixed order: halve the range until one is left, and add the halves.

Floating-point addition is not associative, so the order is part of the experiment. TensorFlow's
graph optimizer would turn (a+b)+(c+d) into one AddN, which adds in another order. It does not look
into functions that are marked as not to be inlined. `maths.shares` divides the tree among workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from paceline.maths.shares import Span, add_subtrees


def opaque(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function that the graph optimizer neither inlines nor merges with its
    surroundings."""
    compiled: Callable[..., Any] = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}, **options
    )
    return compiled


@opaque
def add(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Return the sum of two vectors, as one step of the tree."""
    return left + right


def tree_sum(values: Sequence[Any], add: Callable[[Any, Any], Any] = add) -> Any:
    """Return the sum of tensors by the tree, or of arrays with `add=np.add`."""
    return add_subtrees(
        (0, len(values)), {(k, k + 1): value for k, value in enumerate(values)}, add
    )


def subtree_sums(values: Sequence[tf.Tensor], spans: Sequence[Span]) -> list[tf.Tensor]:
    """Return the sums of the subtrees of a share from the vectors of all its replicas."""
    first = spans[0][0]
    return [tree_sum(values[start - first : stop - first]) for start, stop in spans]
