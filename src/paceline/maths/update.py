"""(vectors, mean gradient, rates) -> vectors: the optimizer rules, elementwise on flat vectors.

Rules use only + - x / and square root of `kernels.arithmetic`, whose bits do not depend on how a
vector is cut into slices, as parameter servers do. `update_more` has groups with their own rules.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow as tf

from paceline.experiment.optimizer import Optimizer
from paceline.experiment.schedule import Rates
from paceline.kernels.arithmetic import number, plain, square_root, total
from paceline.maths.state import Part

Vectors = dict[str, tf.Tensor]
Update = Callable[[Vectors, tf.Tensor, Rates[tf.Tensor]], Vectors]
"""(vectors, mean gradient, rates) -> the vectors that change"""


def slot_names(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of the vectors that the rule keeps, each of the size of params."""
    return RULES[optimizer.name].slots


def decays(optimizer: Optimizer, name: str, shape: tuple[int, ...]) -> bool:
    """Return whether `optimizer.decay` means this weight."""
    if optimizer.decay == "all" or len(shape) > 1:
        return True
    return optimizer.decay == "kernels-and-bias" and name.rsplit("/", 1)[-1] == "bias"


def decay_mask(optimizer: Optimizer, params: Part) -> np.ndarray:
    """Return the decay coefficient of each parameter."""
    numbers = [optimizer.weight_decay * decays(optimizer, name, shape) for name, shape in params]
    return np.repeat(np.array(numbers, np.float32), [math.prod(shape) for _, shape in params])


def build_update(optimizer: Optimizer, params: Part) -> Update:
    """Return the update of params and slots."""
    decay = tf.constant(decay_mask(optimizer, params)) if optimizer.weight_decay else None
    return partial(update_slice, optimizer, decay=decay)


def clip_scale(gradient: tf.Tensor, limit: float) -> tf.Tensor:
    """Return the factor that limits the norm of the whole gradient."""
    norm = plain(square_root(number(total(plain(number(gradient) * gradient)))))
    return plain(limit / number(tf.maximum(norm, limit)))


def update_slice(
    optimizer: Optimizer,
    vectors: Vectors,
    gradient: tf.Tensor,
    rates: Rates[tf.Tensor],
    decay: tf.Tensor | None = None,
) -> Vectors:
    """Update any slice of the vectors, or all of them; `decay` is the same slice of the mask."""
    rule, gradient = RULES[optimizer.name], number(gradient)
    vectors = {name: number(vector) for name, vector in vectors.items()}
    if decay is not None and not rule.decays_apart:
        gradient += decay * vectors["params"]
    new = rule.update(optimizer, vectors, gradient, rates)
    if decay is not None and rule.decays_apart:
        new["params"] -= rates.learning_rate * (decay * vectors["params"])
    return {name: plain(vector) for name, vector in new.items()}


def _sgd(
    optimizer: Optimizer, vectors: Vectors, gradient: tf.Tensor, rates: Rates[tf.Tensor]
) -> Vectors:
    momentum = optimizer.momentum * vectors["momentum"] + gradient
    direction = gradient + optimizer.momentum * momentum if optimizer.nesterov else momentum
    return {"params": vectors["params"] - rates.learning_rate * direction, "momentum": momentum}


def _adamw(
    optimizer: Optimizer, vectors: Vectors, gradient: tf.Tensor, rates: Rates[tf.Tensor]
) -> Vectors:
    momentum = optimizer.momentum * vectors["momentum"] + (1 - optimizer.momentum) * gradient
    squares = optimizer.beta_2 * vectors["squares"] + (1 - optimizer.beta_2) * (gradient * gradient)
    deviation = square_root(squares / rates.bias_2) + optimizer.epsilon
    direction = (momentum / rates.bias_1) / deviation
    params = vectors["params"] - rates.learning_rate * direction
    return {"params": params, "momentum": momentum, "squares": squares}


@dataclass(frozen=True)
class Rule:
    """An optimizer: the vectors that it keeps, and its update."""

    slots: tuple[str, ...]
    update: Callable[[Optimizer, Vectors, tf.Tensor, Rates[tf.Tensor]], Vectors]
    decays_apart: bool = False
    """Whether weight decay is subtracted from the weights instead of added to the gradient."""


RULES = {
    "sgd": Rule(("momentum",), _sgd),
    "adamw": Rule(("momentum", "squares"), _adamw, decays_apart=True),
}
