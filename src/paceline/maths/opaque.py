"""Functions that TensorFlow's graph optimizer leaves as they are.

The optimizer would turn (a+b)+(c+d) into one AddN, which adds in a different order, and merge
operations that stand side by side. It does not look into functions that are marked as not to be
inlined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that the graph optimizer neither inlines nor merges with others."""
    compiled: Callable[..., Any] = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )
    return compiled


@opaque
def add(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Return the sum of two vectors, as one step of the sum over replicas (`maths.sums`)."""
    return left + right
