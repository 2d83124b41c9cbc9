"""Dynamic loss scaling for float16, whose gradients would be rounded to zero otherwise.

The loss is multiplied by a scale and the gradient divided by it. A step whose mean gradient is not
finite changes nothing but the scale, which is halved; after `GROW_EVERY` finite steps in a row it
is doubled. The scale is part of the state: it is in every checkpoint and digest, and all workers
decide by the same mean, so they decide alike.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from paceline.experiment.experiment import Experiment
from paceline.maths.state import Part
from paceline.maths.update import Vectors

VECTOR = "loss_scale"
"""Name of the vector in the state: the scale, and the finite steps since it changed."""
PART: Part = (("scale", ()), ("finite_steps", ()))
INITIAL = np.array([2.0**15, 0.0], np.float32)
GROW_EVERY = 2_000
SMALLEST, LARGEST = 1.0, 2.0**30


def is_scaled(experiment: Experiment) -> bool:
    """Return whether the state of an experiment has a loss scale."""
    return experiment.precision == "float16"


def finish_step(old: Vectors, new: Vectors, gradient: tf.Tensor) -> Vectors:
    """Return the vectors after a step: `new` if the mean gradient is finite, otherwise `old`; and
    the next scale."""
    finite = tf.reduce_all(tf.math.is_finite(gradient))
    kept = {name: tf.where(finite, new[name], old[name]) for name in new}
    return {**kept, VECTOR: _next(old[VECTOR], finite)}


def _next(scale: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
    value, count = scale[0], scale[1] + 1
    grows = count >= GROW_EVERY
    if_finite = tf.stack(
        [
            tf.where(grows, tf.minimum(value * 2, LARGEST), value),
            tf.where(grows, tf.zeros_like(count), count),
        ]
    )
    halved = tf.stack([tf.maximum(value / 2, SMALLEST), tf.zeros_like(count)])
    return tf.where(finite, if_finite, halved)
