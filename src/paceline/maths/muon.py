"""Muon (Jordan 2024) for the filters of convolutions and the matrices of dense layers.

The momentum of a filter tensor is made orthogonal by steps of Newton's and Schulz's iteration,
which brings its singular values near one. Before each update, the tensor itself is scaled to the
norm of the root of its number of outputs. Products of matrices give other bits on slices, so a
variable is always updated as a whole.
"""

from __future__ import annotations

import tensorflow as tf

from paceline.experiment.optimizer import Optimizer
from paceline.experiment.schedule import Rates
from paceline.maths.update import Update, Vectors

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of m, m^3 and m^5: they enlarge small singular values fastest."""
ITERATIONS = 3


def orthogonal(gradient: tf.Tensor) -> tf.Tensor:
    """Return a matrix [inputs, outputs] with the same singular vectors, and values near one."""
    a, b, c = NEWTON_SCHULZ
    m = gradient / (tf.norm(gradient) + 1e-7)
    for _ in range(ITERATIONS):
        square = tf.matmul(m, m, transpose_a=True)
        m = a * m + tf.matmul(m, b * square + c * tf.matmul(square, square))
    return m


def build_muon(optimizer: Optimizer, shape: tuple[int, ...]) -> Update:
    """Return the update of the params and momentum of a whole variable."""
    outputs = shape[-1]

    def update(vectors: Vectors, gradient: tf.Tensor, rates: Rates[tf.Tensor]) -> Vectors:
        params = vectors["params"]
        momentum = optimizer.momentum * vectors["momentum"] + gradient
        chosen = gradient + optimizer.momentum * momentum if optimizer.nesterov else momentum
        direction = tf.reshape(orthogonal(tf.reshape(chosen, [-1, outputs])), [-1])
        if optimizer.weight_decay:
            direction += optimizer.weight_decay * params
        scaled = params * (outputs**0.5 / (tf.norm(params) + 1e-7))
        new = scaled - rates.learning_rate * direction
        # a weight that is frozen from some step on has the rate 0, and is not scaled either
        return {"params": tf.where(rates.learning_rate > 0, new, params), "momentum": momentum}

    return update
