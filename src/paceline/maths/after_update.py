"""What may follow the update of a step: moving averages of the weights, and a loss scale.

Gradients of float16 would be rounded to zero, so the loss is multiplied by a scale and the gradient
divided by it. A step whose mean gradient is not finite changes nothing but the scale, which is
halved; after `GROW_EVERY` finite steps in a row it is doubled. The scale is part of the state. All
workers decide by the same mean, so they decide alike.
"""

from __future__ import annotations

import tensorflow as tf

from paceline.experiment.experiment import Experiment
from paceline.experiment.schedule import Rates
from paceline.maths.state import AVERAGED_STATS, LOSS_SCALE
from paceline.maths.template import Template
from paceline.maths.update import Vectors

GROW_EVERY = 2_000
SMALLEST, LARGEST = 1.0, 2.0**30


def moving_averages(
    experiment: Experiment, vectors: Vectors, new: Vectors, rates: Rates[tf.Tensor]
) -> Vectors:
    """Return the moving averages after a step that led to `new`; averaged weights need averaged
    BatchNorm statistics."""
    average, decay = experiment.average, rates.ema_decay
    if not experiment.optimizer.groups and average.every == 1 and not average.power:
        decay = average.decay  # a constant, which gives other bits of 1 - decay than a tensor
    sources = {"ema": "params", AVERAGED_STATS: "stats"}
    return {
        name: decay * vectors[name] + (1 - decay) * new[source] for name, source in sources.items()
    }


def complete(
    experiment: Experiment,
    template: Template,
    vectors: Vectors,
    new: Vectors,
    gradient: tf.Tensor,
    rates: Rates[tf.Tensor],
) -> Vectors:
    """Return `new`, the vectors after an update of `vectors`, with averages and loss scale."""
    if experiment.average.decay:
        new |= moving_averages(experiment, vectors, new, rates)
        new[AVERAGED_STATS] = template.keep_fixed(vectors[AVERAGED_STATS], new[AVERAGED_STATS])
    return keep_if_finite(vectors, new, gradient) if LOSS_SCALE in vectors else new


def keep_if_finite(old: Vectors, new: Vectors, gradient: tf.Tensor) -> Vectors:
    """Return `new` if the mean gradient is finite, otherwise `old`; and the next loss scale."""
    finite = tf.reduce_all(tf.math.is_finite(gradient))
    kept = {name: tf.where(finite, new[name], old[name]) for name in new}
    value, count = old[LOSS_SCALE][0], old[LOSS_SCALE][1] + 1
    grows, zero = count >= GROW_EVERY, tf.zeros_like(count)
    grown = tf.where(grows, tf.minimum(value * 2, LARGEST), value)
    if_finite = tf.stack([grown, tf.where(grows, zero, count)])
    halved = tf.stack([tf.maximum(value / 2, SMALLEST), zero])
    return {**kept, LOSS_SCALE: tf.where(finite, if_finite, halved)}
