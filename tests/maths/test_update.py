"""The optimizer rules are those of their papers, computed here once more in float64."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.experiment.experiment import Average, Experiment, Optimizer
from paceline.experiment.schedule import Rates
from paceline.maths.after_update import moving_averages
from paceline.maths.update import build_update, decay_mask, slot_names

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
    params, gradients = (
        random.normal(size=SIZE).astype(np.float32),
        random.normal(size=(steps, SIZE)).astype(np.float32),
    )
    vectors = {"params": params} | {
        name: np.zeros(SIZE, np.float32) for name in slot_names(optimizer)
    }
    vectors = {name: tf.constant(v) for name, v in vectors.items()}
    update = tf.function(build_update(optimizer, PARTS), autograph=False)
    for n, gradient in enumerate(gradients, 1):
        corrections = 1 - optimizer.momentum**n, 1 - optimizer.beta_2**n
        new = update(vectors, tf.constant(gradient), rates_of(rate, *corrections))
        assert new.keys() == vectors.keys()
        vectors = new
    return (
        params.astype(float),
        gradients.astype(float),
        {name: v.numpy() for name, v in vectors.items()},
    )


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


def test_nesterov_looks_one_step_ahead():
    """The form of Sutskever et al. as PyTorch documents it: g + mu * m after m <- mu * m + g."""
    p, gradients, ours = run(replace(PLAIN, nesterov=True))
    m = np.zeros(SIZE)
    for g in gradients:
        m = 0.9 * m + g
        p = p - 0.05 * (g + 0.9 * m)
    check(ours["params"], p)


def test_nesterov_agrees_with_keras():
    p, gradients, ours = run(replace(PLAIN, nesterov=True))
    variable = keras.Variable(p.astype(np.float32))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    for g in gradients:
        optimizer.apply([tf.constant(g, tf.float32)], [variable])
    check(ours["params"], np.asarray(variable))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop_divides_by_the_root_of_the_mean_of_squares(momentum):
    p, gradients, ours = run(
        replace(
            PLAIN, name="rmsprop", momentum=momentum, beta_2=0.95, epsilon=1e-3, weight_decay=0.01
        )
    )
    m, s = np.zeros(SIZE), np.zeros(SIZE)
    for g in gradients:
        g = g + 0.01 * KERNELS * p
        s = 0.95 * s + 0.05 * g**2
        m = momentum * m + g / (np.sqrt(s) + 1e-3)
        p = p - 0.05 * m
    check(ours["params"], p)
    check(ours["squares"], s)
    check(ours["momentum"], m)


def adamw(p, gradients, decay, mask):
    m, s = np.zeros(SIZE), np.zeros(SIZE)
    for n, g in enumerate(gradients, 1):
        m, s = 0.9 * m + 0.1 * g, 0.99 * s + 0.01 * g**2
        p = (
            p
            - 0.05 * (m / (1 - 0.9**n)) / (np.sqrt(s / (1 - 0.99**n)) + 1e-8)
            - 0.05 * decay * mask * p
        )
    return p, m, s


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_is_adam_with_bias_correction_and_a_decay_of_its_own(decay):
    p, gradients, ours = run(replace(PLAIN, name="adamw", beta_2=0.99, weight_decay=decay))
    p, m, s = adamw(p, gradients, decay, KERNELS)
    check(ours["params"], p)
    check(ours["momentum"], m)
    check(ours["squares"], s)


def test_adamw_agrees_with_keras():
    p, gradients, ours = run(
        replace(PLAIN, name="adamw", beta_2=0.99, weight_decay=0.1, decay="all")
    )
    variable = keras.Variable(p.astype(np.float32))
    optimizer = keras.optimizers.AdamW(
        0.05, weight_decay=0.1, beta_1=0.9, beta_2=0.99, epsilon=1e-8
    )
    for g in gradients:
        optimizer.apply([tf.constant(g, tf.float32)], [variable])
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


def test_a_gradient_of_zeros_survives_clipping():
    update = build_update(replace(PLAIN, clip_norm=1.0), PARTS)
    zeros = tf.zeros([SIZE])
    new = update({"params": zeros + 1, "momentum": zeros}, zeros, rates_of(0.1))
    np.testing.assert_array_equal(new["params"].numpy(), np.ones(SIZE))


@pytest.mark.parametrize(
    ("average", "decay"),
    [(Average(0.8), 0.8), (Average(0.8, every=2), 0.5), (Average(0.8, power=1.0), 0.5)],
)
def test_moving_averages_follow_the_new_weights_and_statistics(average, decay):
    """A decay that changes is the rates' 0.5."""
    old = {"ema": tf.fill([3], 1.0), "ema_stats": tf.fill([3], 2.0)}
    new = {"params": tf.fill([3], 10.0), "stats": tf.fill([3], 11.0)}
    rates = Rates.of_row(tf.constant([0.1, 1.0, 1.0, 0.5, 0.1]))
    averages = moving_averages(Experiment(average=average), old, new, rates)
    check(averages["ema"], np.full(3, decay * 1 + (1 - decay) * 10))
    check(averages["ema_stats"], np.full(3, decay * 2 + (1 - decay) * 11))


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


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("sgd", ("momentum",)),
        ("rmsprop", ("squares", "momentum")),
        ("adamw", ("momentum", "squares")),
    ],
)
def test_the_slots_of_a_rule_are_part_of_the_state(name, slots):
    assert slot_names(Optimizer(name=name)) == slots


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adamw"])
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
