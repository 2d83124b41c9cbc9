"""The fused BatchNorm equals Keras's; the activation and the initial weights that Keras lacks."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.models.initial_weights import InitialWeights
from paceline.models.layers import FusedBatchNormalization, SigmoidGelu


def both_norms(momentum=0.9):
    """Ours and Keras's, with the same odd weights."""
    random, norms = np.random.default_rng(0), []
    values = [random.uniform(0.5, 2, 5).astype(np.float32) for _ in range(4)]
    for kind in (FusedBatchNormalization, keras.layers.BatchNormalization):
        norm = kind(momentum=momentum, epsilon=1e-3)
        norm.build((None, 6, 6, 5))
        for variable, value in zip(
            (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance), values, strict=True
        ):
            variable.assign(value)
        norms.append(norm)
    x = tf.constant(random.normal(2, 3, (4, 6, 6, 5)).astype(np.float32))
    return *norms, x


@pytest.mark.parametrize(("training", "trainable"), [(False, True), (True, False)])
def test_fused_batchnorm_equals_kerass_in_inference_and_frozen(training, trainable):
    ours, theirs, x = both_norms()
    ours.trainable = theirs.trainable = trainable
    before = np.asarray(ours.moving_mean)
    wanted = theirs(x, training=training)
    np.testing.assert_allclose(ours(x, training=training), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ours.moving_mean, before)


def test_fused_batchnorm_equals_kerass_in_training_with_an_unbiased_moving_variance():
    ours, theirs, x = both_norms()
    old = np.asarray(ours.moving_variance)
    np.testing.assert_allclose(
        ours(x, training=True), theirs(x, training=True), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(ours.moving_mean, theirs.moving_mean, rtol=1e-5)
    unbiased = x.numpy().astype(float).var((0, 1, 2), ddof=1)
    np.testing.assert_allclose(ours.moving_variance, 0.9 * old + 0.1 * unbiased, rtol=1e-5)


def test_gradients_of_fused_batchnorm_equal_those_of_kerass():
    ours, theirs, x = both_norms()
    direction = tf.constant(np.random.default_rng(1).normal(size=x.shape).astype(np.float32))
    gradients = []
    for norm in (ours, theirs):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(norm(x, training=True) * direction)
        gradients.append(tape.gradient(value, [x, norm.gamma.value, norm.beta.value]))
    for own, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("channels", [(4, 8), (8, 4), (8, 8)])
def test_identity_copies_its_input_into_the_first_channels(channels):
    inputs, outputs = channels
    x = np.random.default_rng(0).standard_normal((2, 5, 5, inputs)).astype(np.float32)
    shape, initializer = (3, 3, inputs, outputs), InitialWeights("identity", "a", seed=3)
    kernel = initializer(shape, "float32")
    y = tf.nn.conv2d(x, kernel, 1, "SAME").numpy()
    common = min(channels)
    np.testing.assert_array_equal(y[..., :common], x[..., :common])
    rest = np.asarray(kernel)[..., common:]
    assert rest.size == 0 or 0.9 < rest.std() * (3 * 9 * inputs) ** 0.5 < 1.1
    np.testing.assert_array_equal(kernel, initializer(shape, "float32"))


def test_gelu_in_its_sigmoid_form_is_near_the_exact_one():
    z = np.linspace(-4, 4, 101, dtype=np.float32)
    found = SigmoidGelu()(z).numpy()
    np.testing.assert_allclose(found, z / (1 + np.exp(-1.702 * z)), rtol=1e-5, atol=1e-6)
    assert np.abs(found - keras.activations.gelu(z).numpy()).max() < 0.021
