"""Kernels for max-pooling and z sigmoid(alpha z): exact, and used by models that have them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_kernels import compare, random, with_gradients

from paceline.experiment.experiment import Model
from paceline.kernels import accelerate, library, ops
from paceline.models.activations import SigmoidGelu
from paceline.models.resnet import build_resnet
from paceline.models.speedrun import build_speedrun

pytestmark = pytest.mark.skipif(
    bool(library.why_unavailable()), reason=f"own kernels: {library.why_unavailable()}"
)

ALPHAS = (1.0, 1.702)


def act(z, alpha):
    return z * tf.sigmoid(tf.cast(alpha, z.dtype) * z)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("shape", [(3, 5, 7, 24), (600, 8), (2, 17, 17, 64)])
def test_swish_after_a_bias_is_as_exact_as_tensorflows(alpha, shape):
    arguments = 3 * random(0, *shape), random(1, shape[-1]), random(2, shape[-1])
    compare(
        lambda x, factor, offset: ops.swish(x, factor, offset, alpha),
        lambda x, factor, offset: act(x * factor + offset, alpha),
        arguments,
        random(3, *shape),
    )


def norm_by_tensorflow(x, gamma, beta, epsilon):
    axes = list(range(x.shape.rank - 1))
    mean, variance = tf.nn.moments(x, axes)
    return (x - mean) / tf.sqrt(variance + tf.cast(epsilon, x.dtype)) * gamma + beta


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("shape", [(3, 5, 7, 24), (600, 8), (2, 17, 17, 64)])
def test_swish_after_a_norm_is_as_exact_as_tensorflows(alpha, shape):
    arguments = 2 + 3 * random(0, *shape), random(1, shape[-1]), random(2, shape[-1])
    compare(
        lambda x, gamma, beta: ops.norm_swish(x, gamma, beta, 1e-5, alpha)[0],
        lambda x, gamma, beta: act(norm_by_tensorflow(x, gamma, beta, 1e-5), alpha),
        arguments,
        random(3, *shape),
    )


def test_extreme_inputs_have_finite_outputs_and_gradients():
    x = np.float32([-1e30, -1e4, -90, -50, 0, 50, 90, 1e4])[None].repeat(2, 0)
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    y, dx, *_ = with_gradients(
        lambda *inputs: ops.swish(*inputs, 1.702), (x, ones, zeros), np.ones_like(x)
    )
    np.testing.assert_allclose(y[0], [0, 0, 0, 0, 0, 50, 90, 1e4], atol=1e-6)
    np.testing.assert_allclose(dx[0], [0, 0, 0, 0, 0.5, 1, 1, 1], atol=1e-6)


@pytest.mark.parametrize("side", [2, 6, 7, 11])
def test_max_pooling_equals_tensorflows_bit_for_bit(side):
    """Also where several numbers of a window are the maximum, as after ReLU."""
    x = np.maximum(random(0, 3, side, side + 1, 16), 0)
    dy = random(1, 3, side // 2, (side + 1) // 2, 16)
    own = with_gradients(ops.max_pool, (x,), dy)
    stock = with_gradients(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), (x,), dy)
    for mine, theirs in zip(own, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_first_of_equal_maxima_takes_the_gradient():
    x = np.zeros((1, 2, 2, 8), np.float32)
    _, dx = with_gradients(ops.max_pool, (x,), np.ones((1, 1, 1, 8), np.float32))
    np.testing.assert_array_equal(dx[0, :, :, 0], [[1, 0], [0, 0]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.max_pool(tf.zeros([1, 2, 2, 4])),
        lambda: ops.max_pool(tf.zeros([1, 1, 2, 8])),
        lambda: ops.swish(tf.zeros([2, 8]), tf.zeros([8]), tf.zeros([16]), 1.0),
        lambda: ops.norm_swish(tf.zeros([2, 12]), tf.zeros([12]), tf.zeros([12]), 1e-5, 1.0),
    ],
)
def test_wrong_shapes_are_errors_not_crashes(call):
    with pytest.raises(tf.errors.InvalidArgumentError):
        call()


def models():
    small = Model(layout="speedrun", width=8, activation="gelu", norm_scale=False)
    silu = Model(depth=8, width=8, activation="silu", norm_scale=False)
    return {
        "speedrun": lambda: build_speedrun(small, (33, 33, 3), 10, 1),
        "resnet": lambda: build_resnet(silu, (16, 16, 3), 10, 1),
        "v2": lambda: build_resnet(
            Model(depth=8, width=8, version="v2", activation="gelu"), (16, 16, 3), 10
        ),
    }


@pytest.mark.parametrize("name", models())
@pytest.mark.parametrize("training", [True, False])
def test_a_rewritten_model_computes_the_same(name, training):
    """Outputs, gradients and moving statistics."""
    found = []
    for own in (False, True):
        model = models()[name]()
        fast = accelerate(model) if own else model
        x = tf.constant(random(0, 4, *model.input_shape[1:]))
        variables = [v.value for v in model.trainable_variables]
        with tf.GradientTape() as tape:
            y = fast(x, training=training)
            loss = tf.reduce_sum(y * y)
        gradients = tape.gradient(loss, variables) if training else []
        found.append([y, *gradients, *model.non_trainable_variables])
    for stock, mine in zip(*found, strict=True):
        mine, stock = (np.asarray(each) for each in (mine, stock))
        np.testing.assert_allclose(mine, stock, rtol=2e-3, atol=2e-3 * (1 + np.abs(stock).max()))


def test_the_speedrun_network_uses_a_kernel_for_every_layer_that_has_one():
    kinds = [type(each).__name__ for each in accelerate(models()["speedrun"]()).layers]
    assert kinds.count("FastNormSwish") == kinds.count("FastConv2D") == 6
    assert kinds.count("FastMaxPool2D") == 3
    assert kinds.count("FastConvSwish") == 1
    assert not {"Conv2D", "MaxPooling2D", "FusedBatchNormalization", "SigmoidGelu"} & set(kinds)


def test_gelu_in_its_sigmoid_form_is_near_the_exact_one():
    z = np.linspace(-4, 4, 101, dtype=np.float32)
    found = SigmoidGelu()(z).numpy()
    np.testing.assert_allclose(found, z / (1 + np.exp(-1.702 * z)), rtol=1e-5, atol=1e-6)
    assert np.abs(found - keras.activations.gelu(z).numpy()).max() < 0.021
