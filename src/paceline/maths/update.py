"""(state, mean gradient, rates) -> state: the optimizer rules, elementwise on flat vectors.

Rules use only + - x / and square root. TensorFlow computes exp and rsqrt with other instructions at
the end of a vector than in its middle, so their bits would depend on how a vector is cut into
slices, as parameter servers do. Groups of weights with their own rules and rates are in
`maths.grouped_update`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from paceline.experiment.experiment import Average, Experiment, Optimizer
from paceline.experiment.schedule import Rates, has_groups
from paceline.maths.state import Part

Vectors = dict[str, tf.Tensor]
Update = Callable[[Vectors, tf.Tensor, Rates[tf.Tensor]], Vectors]
"""(vectors, mean gradient, rates) -> the vectors that change"""

NO_AVERAGE = Average()

_SLOTS = {
    "sgd": ("momentum",),
    "rmsprop": ("squares", "momentum"),
    "adamw": ("momentum", "squares"),
}


def slot_names(optimizer: Optimizer, ema: Average = NO_AVERAGE) -> tuple[str, ...]:
    """Return the names of the further vectors of the size of params that the rule keeps."""
    return _SLOTS[optimizer.name] + (("ema",) if ema.decay else ())


def decays(optimizer: Optimizer, name: str, shape: tuple[int, ...]) -> bool:
    """Return whether `optimizer.decay` means this weight."""
    if optimizer.decay == "all" or len(shape) > 1:
        return True
    return optimizer.decay == "kernels-and-bias" and name.rsplit("/", 1)[-1] == "bias"


def decay_mask(optimizer: Optimizer, params: Part) -> np.ndarray:
    """Return the decay coefficient of each parameter."""
    return np.concatenate(
        [
            np.full(int(np.prod(s)), optimizer.weight_decay * decays(optimizer, n, s), np.float32)
            for n, s in params
        ]
    )


def build_update(optimizer: Optimizer, params: Part, ema: Average = NO_AVERAGE) -> Update:
    """Return the update of params, slots and ema."""
    decay = tf.constant(decay_mask(optimizer, params)) if optimizer.weight_decay else None

    def update(vectors: Vectors, gradient: tf.Tensor, rates: Rates[tf.Tensor]) -> Vectors:
        scale = clip_scale(gradient, optimizer.clip_norm) if optimizer.clip_norm else None
        return update_slice(optimizer, vectors, gradient, rates, decay, scale, ema)

    return update


def clip_scale(gradient: tf.Tensor, limit: float) -> tf.Tensor:
    """Return the factor that limits the norm of the whole gradient."""
    norm = tf.sqrt(tf.reduce_sum(gradient * gradient))
    return limit / tf.maximum(norm, limit)


def update_slice(
    optimizer: Optimizer,
    vectors: Vectors,
    gradient: tf.Tensor,
    rates: Rates[tf.Tensor],
    decay: tf.Tensor | None,
    scale: tf.Tensor | None,
    ema: Average = NO_AVERAGE,
) -> Vectors:
    """Update any slice of the vectors, or all of them; `decay` is the same slice of the mask."""
    rule = {"sgd": _sgd, "rmsprop": _rmsprop, "adamw": _adamw}[optimizer.name]
    if scale is not None:
        gradient = gradient * scale
    if decay is not None and optimizer.name != "adamw":
        gradient += decay * vectors["params"]
    new = rule(optimizer, vectors, gradient, rates)
    if decay is not None and optimizer.name == "adamw":
        new["params"] -= rates.learning_rate * (decay * vectors["params"])
    if ema.decay:
        new["ema"] = average(ema.decay, vectors["ema"], new["params"])
    return new


def average(decay: float | tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """Return a moving average after a step."""
    return decay * old + (1 - decay) * new


def average_of_stats(
    experiment: Experiment, old: tf.Tensor, stats: tf.Tensor, rates: Rates[tf.Tensor]
) -> tf.Tensor:
    """Return the moving average of the statistics after a step, with the decay of the weights.

    Averaged weights need averaged BatchNorm statistics.
    """
    # a constant and a tensor give different bits of 1 - decay
    decay = rates.ema_decay if has_groups(experiment) else experiment.average.decay
    return average(decay, old, stats)


def _sgd(
    optimizer: Optimizer, vectors: Vectors, gradient: tf.Tensor, rates: Rates[tf.Tensor]
) -> Vectors:
    momentum = optimizer.momentum * vectors["momentum"] + gradient
    direction = gradient + optimizer.momentum * momentum if optimizer.nesterov else momentum
    return {"params": vectors["params"] - rates.learning_rate * direction, "momentum": momentum}


def _rmsprop(
    optimizer: Optimizer, vectors: Vectors, gradient: tf.Tensor, rates: tf.Tensor
) -> Vectors:
    squares = optimizer.beta_2 * vectors["squares"] + (1 - optimizer.beta_2) * (gradient * gradient)
    momentum = optimizer.momentum * vectors["momentum"] + gradient / (
        tf.sqrt(squares) + optimizer.epsilon
    )
    return {
        "params": vectors["params"] - rates.learning_rate * momentum,
        "squares": squares,
        "momentum": momentum,
    }


def _adamw(
    optimizer: Optimizer, vectors: Vectors, gradient: tf.Tensor, rates: tf.Tensor
) -> Vectors:
    momentum = optimizer.momentum * vectors["momentum"] + (1 - optimizer.momentum) * gradient
    squares = optimizer.beta_2 * vectors["squares"] + (1 - optimizer.beta_2) * (gradient * gradient)
    direction = (momentum / rates.bias_1) / (tf.sqrt(squares / rates.bias_2) + optimizer.epsilon)
    return {
        "params": vectors["params"] - rates.learning_rate * direction,
        "momentum": momentum,
        "squares": squares,
    }
