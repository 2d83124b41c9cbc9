"""The optimizer rules are those of their papers, computed here once more in float64."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.experiment.experiment import Optimizer
from paceline.experiment.schedule import Rates
from paceline.maths.update import build_update, clip_scale, decay_mask, slot_names

PARTS = (
    ("conv/kernel", (3, 2)),
    ("norm/gamma", (2,)),
    ("norm/beta", (2,)),
    ("dense/kernel", (2, 2)),
    ("dense/bias", (2,)),
)
SIZE = 16
KERNELS = np.array([1] * 6 + [0] * 4 + [1] * 4 + [0] * 2, float)
BIAS = np.array([0] * 14 + [1] * 2, float)


def run(optimizer, steps=5, rate=0.05):
    """Five steps from random numbers, by the program: the vectors after each step, and the
    gradients used."""
    random = np.random.default_rng(3)
    params, *gradients = random.normal(size=(steps + 1, SIZE)).astype(np.float32)
    slots = dict.fromkeys(slot_names(optimizer), tf.zeros([SIZE]))
    vectors = {"params": tf.constant(params), **slots}
    update = tf.function(build_update(optimizer, PARTS), autograph=False)
    limit = optimizer.clip_norm
    for n, gradient in enumerate(map(tf.constant, gradients), 1):
        corrections = 1 - optimizer.momentum**n, 1 - optimizer.beta_2**n
        clipped = gradient * clip_scale(gradient, limit) if limit else gradient
        new = update(vectors, clipped, rates_of(rate, *corrections))
        assert new.keys() == vectors.keys()
        vectors = new
    found = {name: v.numpy() for name, v in vectors.items()}
    return params.astype(float), np.float64(gradients), found


def rates_of(learning_rate, bias_1=1.0, bias_2=1.0):
    """Rates as tensors; the update of plain optimizers reads the first three."""
    return Rates.of_row(tf.constant([learning_rate, bias_1, bias_2, 0.0, 0.0], tf.float32))


def check(ours, expected):
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-6)


PLAIN = Optimizer(weight_decay=0.0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_sgd_is_heavy_ball_momentum_with_the_decay_in_the_gradient(momentum, decay):
    p, gradients, ours = run(replace(PLAIN, momentum=momentum, weight_decay=decay))
    m = np.zeros(SIZE)
    for g in gradients:
        m = momentum * m + g + decay * KERNELS * p
        p = p - 0.05 * m
    check(ours["params"], p)
    check(ours["momentum"], m)


ADAMW = {"name": "adamw", "beta_2": 0.99, "weight_decay": 0.1, "decay": "all"}


@pytest.mark.parametrize("changes", [{"nesterov": True}, ADAMW])
def test_nesterov_and_adamw_agree_with_keras(changes):
    by_keras = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    if changes == ADAMW:
        by_keras = keras.optimizers.AdamW(0.05, weight_decay=0.1, beta_2=0.99, epsilon=1e-8)
    p, gradients, ours = run(replace(PLAIN, **changes))
    variable = keras.Variable(p.astype(np.float32))
    for g in gradients:
        by_keras.apply([tf.constant(g, tf.float32)], [variable])
    np.testing.assert_allclose(ours["params"], np.asarray(variable), rtol=1e-4, atol=1e-5)


def test_clipping_scales_the_whole_gradient_down_to_the_limit_before_the_decay():
    p, gradients, ours = run(replace(PLAIN, momentum=0.5, clip_norm=1.5, weight_decay=0.1))
    assert (np.linalg.norm(gradients, axis=1) > 1.5).all()
    m = np.zeros(SIZE)
    for g in gradients:
        g = g * min(1, 1.5 / np.linalg.norm(g))
        m = 0.5 * m + g + 0.1 * KERNELS * p
        p = p - 0.05 * m
    check(ours["params"], p)


def test_a_gradient_below_the_limit_is_left_bit_for_bit():
    _, gradients, clipped = run(replace(PLAIN, clip_norm=100.0))
    assert np.linalg.norm(gradients, axis=1).max() < 100
    _, _, plain = run(PLAIN)
    np.testing.assert_array_equal(clipped["params"], plain["params"])


@pytest.mark.parametrize(
    ("decay", "mask"),
    [("kernels", KERNELS), ("kernels-and-bias", KERNELS + BIAS), ("all", np.ones(SIZE))],
)
def test_decay_reaches_the_weights_it_is_meant_for(decay, mask):
    optimizer = replace(PLAIN, decay=decay, weight_decay=0.25)
    np.testing.assert_array_equal(decay_mask(optimizer, PARTS), (0.25 * mask).astype(np.float32))
    for name in ("sgd", "adamw"):
        zeros, ones = tf.zeros([SIZE]), tf.ones([SIZE])
        vectors = {"params": ones} | dict.fromkeys(slot_names(replace(optimizer, name=name)), zeros)
        new = build_update(replace(optimizer, name=name), PARTS)(
            vectors, zeros, rates_of(0.1, 0.1, 0.001)
        )
        np.testing.assert_allclose(new["params"].numpy(), 1 - 0.1 * 0.25 * mask, rtol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_slice_of_the_vectors_is_updated_with_the_same_bits_as_the_whole(name):
    """What parameter servers rely on: a vector may be parted anywhere."""
    optimizer = replace(PLAIN, name=name, nesterov=True)
    random, size = np.random.default_rng(0), 1003
    names = ("params", *slot_names(optimizer))
    vectors = {n: tf.constant(np.abs(random.normal(size=size)).astype(np.float32)) for n in names}
    gradient, rates = (
        tf.constant(random.normal(size=size).astype(np.float32)),
        rates_of(0.1, 0.1, 0.001),
    )

    def update(size):
        return tf.function(build_update(optimizer, (("w", (size,)),)), autograph=False)

    whole = update(size)(vectors, gradient, rates)
    for start, stop in [(0, 501), (501, 1003), (7, 8)]:
        part = update(stop - start)
        own = part({n: v[start:stop] for n, v in vectors.items()}, gradient[start:stop], rates)
        for n in names:
            np.testing.assert_array_equal(own[n].numpy(), whole[n].numpy()[start:stop])
