"""Own kernels: exact, the same bits from any thread, clear errors, and models that use them."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.experiment.experiment import Model
from paceline.kernels import accelerate, library, ops
from paceline.models.resnet import build_resnet

pytestmark = pytest.mark.skipif(
    bool(library.why_unavailable()), reason=f"own kernels: {library.why_unavailable()}"
)

CHANNELS = st.integers(1, 64).map(lambda n: 8 * n)
SIDES = st.integers(1, 13)
LARGE_SIDES = st.integers(1, 40)


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_gradients(function, arguments, dy):
    """The output and the gradients of all arguments, in their own precision."""
    tensors = [tf.constant(each) for each in arguments]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = function(*tensors)
        loss = tf.reduce_sum(y * tf.cast(dy, y.dtype))
    return [each.numpy() for each in (y, *tape.gradient(loss, tensors))]


def error(found, exact):
    return np.linalg.norm((found - exact).ravel()) / (np.linalg.norm(exact.ravel()) + 1e-30)


def assert_close(own, stock, exact, times):
    """Assert that no error is more than `times` that of TensorFlow, or 1e-6."""
    for mine, theirs, right in zip(own, stock, exact, strict=True):
        assert mine.shape == right.shape
        assert error(mine, right) <= times * max(error(theirs, right), 1e-6)


def compare(function, stock, arguments, dy, times=12.0):
    double = [np.float64(each) for each in arguments]
    assert_close(
        with_gradients(function, arguments, dy),
        with_gradients(stock, arguments, dy),
        with_gradients(stock, double, dy),
        times,
    )


def stock_conv(stride, padding="SAME"):
    return lambda x, kernel: tf.nn.conv2d(x, kernel, stride, padding)


def compare_3x3(n, h, w, c, k, seed):
    images, kernel, dy = (
        random(seed, n, h, w, c),
        random(seed + 1, 3, 3, c, k),
        random(seed + 2, n, h, w, k),
    )
    compare(ops.conv3x3, stock_conv(1), [images, kernel], dy)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), SIDES, SIDES, CHANNELS, CHANNELS, st.integers(0, 99))
def test_3x3_convolutions_and_their_gradients_are_as_exact_as_tensorflows(n, h, w, c, k, seed):
    compare_3x3(n, h, w, c, k, seed)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9), LARGE_SIDES, LARGE_SIDES, CHANNELS, CHANNELS, st.integers(0, 99))
def test_3x3_convolutions_of_larger_images_are_as_exact_as_tensorflows(n, h, w, c, k, seed):
    compare_3x3(n, h, w, c, k, seed)


def compare_conv(n, h, w, c, k, stride, size, padding, seed):
    if padding == "VALID":
        h, w = h + size - 1, w + size - 1
    images, kernel = random(seed, n, h, w, c), random(seed + 1, size, size, c, k)
    stock = stock_conv(stride, padding)
    dy = random(seed + 2, *stock(images, kernel).shape)
    compare(lambda x, f: ops.conv(x, f, stride, padding), stock, [images, kernel], dy)


STRIDES, SIZES = st.integers(1, 3), st.sampled_from([1, 2, 3, 5, 7])
PADDINGS, SEEDS = st.sampled_from(["SAME", "VALID"]), st.integers(0, 99)
MORE_SIDES = st.one_of(SIDES, st.integers(14, 40))
FEW = (st.sampled_from([1, 3, 8, 16]), st.sampled_from([8, 16, 24, 64]))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), SIDES, MORE_SIDES, *FEW, STRIDES, SIZES, PADDINGS, SEEDS)
def test_other_convolutions_and_their_gradients_are_as_exact_as_tensorflows(
    n, h, w, c, k, stride, size, padding, seed
):
    compare_conv(n, h, w, c, k, stride, size, padding, seed)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), SIDES, MORE_SIDES, CHANNELS, CHANNELS, st.integers(1, 2), SEEDS)
def test_1x1_convolutions_of_many_channels_are_as_exact_as_tensorflows(n, h, w, c, k, stride, seed):
    compare_conv(n, h, w, c, k, stride, 1, "SAME", seed)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 6), LARGE_SIDES, LARGE_SIDES, CHANNELS, CHANNELS, STRIDES, SIZES, PADDINGS, SEEDS
)
def test_other_convolutions_of_larger_images_are_as_exact_as_tensorflows(
    n, h, w, c, k, stride, size, padding, seed
):
    compare_conv(n, min(h, 20), min(w, 20), c, k, stride, size, padding, seed)


def stock_norm(slope):
    def norm(x, gamma, beta, *residual):
        mean, variance = tf.nn.moments(x, list(range(x.shape.rank - 1)))
        z = (x - mean) / tf.sqrt(variance + tf.cast(1e-5, x.dtype)) * gamma + beta
        z = tf.add_n([z, *residual])
        return tf.where(z > 0, z, tf.cast(slope, z.dtype) * z)

    return norm


def own_norm(slope):
    return lambda x, gamma, beta, *residual: ops.batch_norm(
        x, gamma, beta, list(residual), 1e-5, slope
    )[0]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    CHANNELS,
    st.sampled_from([0.0, 0.1, 1.0]),
    st.booleans(),
    st.integers(0, 99),
)
def test_batch_norm_with_sum_and_activation_is_as_exact_as_tensorflows(
    sizes, c, slope, has_residual, seed
):
    if np.prod(sizes) < 4:  # of one row the variance is 0, and gradients are noise
        sizes = [*sizes, 4]
    shape = (*sizes, c)
    arguments = [2 * random(seed, *shape) + 1, random(seed + 1, c), random(seed + 2, c)]
    arguments += [random(seed + 3, *shape)] * has_residual
    # A sum that is nearly 0 may fall on the other side of it: such examples are moved away.
    double = stock_norm(1.0)(*(tf.constant(np.float64(each)) for each in arguments)).numpy()
    arguments[2] = arguments[2] + np.float32(0.01) * (np.abs(double).min() < 1e-5)
    compare(own_norm(slope), stock_norm(slope), arguments, random(seed + 4, *shape), times=20.0)


def test_batch_norm_gives_the_mean_and_the_unbiased_variance():
    x = 3 * random(0, 4, 6, 5, 16) + 100
    _, mean, variance = ops.batch_norm(x, tf.ones(16), tf.zeros(16), [], 1e-5, 0.0)
    rows = np.float64(x.reshape(-1, 16))
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance, rows.var(0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("residuals", [0, 1])
def test_batch_norm_with_given_statistics_and_its_gradients(slope, residuals):
    x, gamma, beta, mean = random(0, 3, 4, 5, 16), random(1, 16), random(2, 16), random(3, 16)
    variance = np.abs(random(4, 16)) + 0.5

    def stock(x, gamma, beta, mean, variance, *residual):
        z = (x - mean) / tf.sqrt(variance + tf.cast(1e-5, x.dtype)) * gamma + beta
        z = tf.add_n([z, *residual])
        return tf.where(z > 0, z, tf.cast(slope, z.dtype) * z)

    def own(x, gamma, beta, mean, variance, *residual):
        return ops.batch_norm_inference(x, gamma, beta, mean, variance, list(residual), 1e-5, slope)

    arguments = [x, gamma, beta, mean, variance, *([random(5, 3, 4, 5, 16)] * residuals)]
    compare(own, stock, arguments, random(6, 3, 4, 5, 16))


def block(conv_norm, stride):
    """A convolution, its norm with ReLU, and a shortcut around both where shapes allow it."""

    def compute(x, kernel, gamma, beta):
        y, through = conv_norm(x, kernel, gamma, beta)
        return y + through if stride == 1 and x.shape[-1] == kernel.shape[-1] else y

    return compute


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 4),
    SIDES,
    st.sampled_from([3, 8, 16, 24]),
    st.sampled_from([8, 16, 24, 64]),
    st.integers(1, 2),
    st.sampled_from([1, 3]),
    SEEDS,
)
def test_a_convolution_with_its_norm_is_as_exact_as_tensorflows(n, side, c, k, stride, size, seed):
    def own(x, kernel, gamma, beta):
        y, moments, through = ops.conv_moments(x, kernel, stride, 1e-5, fork=True)
        return ops.batch_norm(y, gamma, beta, [], 1e-5, 1.0, moments)[0], through

    def stock(x, kernel, gamma, beta):
        return stock_norm(1.0)(stock_conv(stride)(x, kernel), gamma, beta), x

    images, kernel = random(seed, n, side + 3, side, c), random(seed + 1, size, size, c, k)
    dy = random(seed + 2, n, -(-(side + 3) // stride), -(-side // stride), k)
    arguments = [images, kernel, random(seed + 3, k), random(seed + 4, k)]
    compare(block(own, stride), block(stock, stride), arguments, dy, times=20.0)


def test_the_moments_of_a_convolution_are_those_of_its_output():
    for c, stride in ((3, 1), (16, 1), (16, 2)):
        x, kernel = 3 * random(0, 5, 37, 30, c) + 10, random(1, 3, 3, c, 24)
        y, (mean, scale, variance), _ = ops.conv_moments(x, kernel, stride, 1e-3, False)
        assert y.numpy().tobytes() == ops.conv(x, kernel, stride).numpy().tobytes()
        rows = np.float64(y).reshape(-1, 24)
        np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(scale, (rows.var(0) + 1e-3) ** -0.5, rtol=1e-5)
        np.testing.assert_allclose(variance, rows.var(0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("c", [3, 16])
@pytest.mark.parametrize("residuals", [0, 1])
def test_a_convolution_with_its_norm_for_inference_and_their_gradients(stride, c, residuals):
    norm = [random(2, 24), random(3, 24), random(4, 24), np.abs(random(5, 24)) + 0.5]
    output = (3, -(-21 // stride), -(-18 // stride), 24)
    arguments = [random(0, 3, 21, 18, c), random(1, 3, 3, c, 24), *norm]
    arguments += [random(6, *output)] * residuals

    def together(x, kernel, gamma, beta, mean, variance, *residual):
        norm = [gamma, beta, mean, variance]
        return ops.conv_norm_inference(x, kernel, stride, norm, list(residual), 1e-5, 0.1)

    def apart(x, kernel, gamma, beta, mean, variance, *residual):
        y = ops.conv(x, kernel, stride)
        return ops.batch_norm_inference(y, gamma, beta, mean, variance, list(residual), 1e-5, 0.1)

    dy = random(7, *output)
    for one, other in zip(
        with_gradients(together, arguments, dy), with_gradients(apart, arguments, dy), strict=True
    ):
        assert one.tobytes() == other.tobytes()


def test_six_threads_at_once_get_the_same_bits():
    x, kernel, dy = random(0, 8, 17, 13, 24), random(1, 3, 3, 24, 40), random(2, 8, 17, 13, 40)
    residual = random(3, 8, 17, 13, 24)
    found = []

    def compute():
        norm = [x, random(4, 24), random(5, 24), residual]
        results = with_gradients(ops.conv3x3, [x, kernel], dy)
        results += with_gradients(own_norm(0.0), norm, x)
        results += with_gradients(lambda x, f: ops.conv(x, f, 2), [x, kernel], dy[:, :9, :7])
        results += with_gradients(lambda x, f: ops.conv(x, f, 1), [x, kernel[:1, :1]], dy)
        found.append([each.tobytes() for each in results])

    threads = [threading.Thread(target=compute) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 6
    assert all(each == found[0] for each in found)


IMAGES, FILTER = (2, 4, 4, 8), (3, 3, 8, 8)


def zeros(*shapes):
    return [tf.zeros(shape) for shape in shapes]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (ops.conv3x3, (IMAGES, (3, 3, 16, 8))),
        (ops.conv3x3, ((2, 4, 4, 12), (3, 3, 12, 8))),
        (ops.conv3x3, (IMAGES, (5, 5, 8, 8))),
        (ops.conv3x3, ((4, 4, 8), FILTER)),
        (ops.conv3x3, (IMAGES, (3, 3, 8, 12))),
        (lambda x, f: ops.conv(x, f, 2), (IMAGES, (3, 3, 3, 8))),
        (lambda x, f: ops.conv(x, f, 2), (IMAGES, (3, 3, 8, 3))),
        (lambda x, f: ops.conv(x, f, 1, "VALID"), (IMAGES, (5, 3, 8, 8))),
        (
            lambda x, f: ops.load().paceline_conv_input_gradient(x, f, x, [x[:1]], stride=1),
            (IMAGES, (1, 1, 8, 8)),
        ),
        (lambda x, g: ops.batch_norm(x, g, g, [], 1e-5, 0.0), (IMAGES, (16,))),
        (lambda x, g: ops.batch_norm(x, g, g, [], 1e-5, 0.0), ((2, 4, 4, 12), (12,))),
        (lambda x, g: ops.batch_norm(x, g, g, [x[:1]], 1e-5, 0.0), (IMAGES, (8,))),
        (lambda x, g: ops.batch_norm(x, g, g, [], 1e-5, 0.0), ((8,), (8,))),
        (lambda x, g: ops.batch_norm_inference(x, g, g, g, g, [], 1e-5, 0.0), (IMAGES, (16,))),
        (lambda x, m: ops.batch_norm(x, m, m, [], 1e-5, 0.0, [m, m]), (IMAGES, (8,))),
        (lambda x, m: ops.batch_norm(x, m, m, [], 1e-5, 0.0, [m, m, tf.zeros(16)]), (IMAGES, (8,))),
        (
            lambda x, f: ops.conv_norm_inference(x, f, 1, [tf.ones(16)] * 4, [], 1e-5, 0.0),
            (IMAGES, FILTER),
        ),
        (
            lambda x, f: ops.conv_norm_inference(x, f, 2, [tf.ones(8)] * 4, [x], 1e-5, 0.0),
            (IMAGES, FILTER),
        ),
        (
            lambda x, f: ops.load().paceline_conv3x3(x, f, num_moments=2, forks=0, epsilon=1e-5),
            (IMAGES, FILTER),
        ),
        (lambda x, f: ops.load().paceline_conv3x3_input_gradient(x, f, [x[:1]]), (IMAGES, FILTER)),
        (lambda x, dy: ops.load().paceline_conv3x3_filter_gradient(x, dy), (IMAGES, (2, 4, 5, 8))),
        (lambda x, dy: ops.load().paceline_conv3x3_filter_gradient(x, dy), (IMAGES, (2, 4, 8))),
        (
            lambda x, f: ops.load().paceline_conv3x3_input_gradient(x, f, []),
            (IMAGES, (3, 3, 8, 16)),
        ),
    ],
)
def test_shapes_that_do_not_fit_are_errors_in_graphs_and_at_run_time(function, shapes, traced):
    call = tf.function(function, autograph=False) if traced else function
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        call(*zeros(*shapes))


@pytest.mark.parametrize("shape", [(0, 4, 4, 8), (2, 0, 4, 8), (2, 4, 0, 8)])
def test_empty_images_are_errors(shape):
    for call in (
        lambda x: ops.conv3x3(x, tf.zeros(FILTER)),
        lambda x: ops.conv(x, tf.zeros(FILTER), 2),
        lambda x: ops.batch_norm(x, tf.ones(8), tf.ones(8), [], 1e-5, 0.0),
        lambda x: ops.load().paceline_conv3x3_filter_gradient(x, x),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not empty"):
            call(tf.zeros(shape))


def test_gradients_of_wrong_shape_are_errors():
    x, kernel = zeros(IMAGES, FILTER)
    for call in (
        lambda: ops.load().paceline_conv_input_gradient(
            tf.zeros((2, 4, 4, 8)), kernel, x, [], stride=2
        ),
        lambda: ops.load().paceline_conv_filter_gradient(
            x, tf.zeros((2, 3, 2, 8)), kernel, stride=2
        ),
        lambda: ops.load().paceline_batch_norm_gradient(
            tf.zeros((2, 4, 3, 8)), x, *zeros(*[(8,)] * 4), [], slope=0.0
        ),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call()


@pytest.mark.parametrize("kind", [tf.float64, tf.float16, tf.int32])
def test_other_types_are_errors(kind):
    x, kernel, vector = (tf.zeros(shape, kind) for shape in (IMAGES, FILTER, (8,)))
    for call in (
        lambda: ops.conv3x3(x, kernel),
        lambda: ops.conv(x, kernel, 2),
        lambda: ops.batch_norm(x, vector, vector, [], 1e-5, 0.0),
        lambda: ops.batch_norm_inference(x, *[vector] * 4, [], 1e-5, 0.0),
    ):
        with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
            call()


# --- models


def values(model, variables, x, training):
    """Outputs, gradients and new statistics of a model with these variables."""
    tensors = [tf.convert_to_tensor(v) for v in variables]
    trained = [tensor for v, tensor in zip(variables, tensors, strict=True) if v.trainable]
    with tf.GradientTape() as tape:
        tape.watch(trained)
        with keras.StatelessScope(
            state_mapping=list(zip(variables, tensors, strict=True))
        ) as scope:
            outputs = model(x, training=training)
        loss = tf.reduce_sum(outputs * outputs)
    gradients = tape.gradient(loss, trained)
    return [outputs, *gradients, *(scope.get_current_value(v) for v in variables)]


def kinds(model):
    return [type(layer).__name__ for layer in model.layers]


MODELS = {
    "v1": (Model(depth=8), 16, 7, 0, 0),
    "v2": (Model(depth=8, version="v2"), 16, 4, 3, 3),
    "leaky": (Model(depth=8, leakiness=0.1), 16, 7, 0, 0),
    "projections": (Model(depth=8, shortcut="B-norm"), 16, 9, 0, 0),
    # Leaky by 0.99: with a ReLU, activations on the other side of 0 change gradients. On four
    # seeds, own kernels differed from double precision by up to 1.4 %, TensorFlow's by 4.3 %.
    "bottleneck": (
        Model(depth=11, block="bottleneck", shortcut="B-norm", leakiness=0.99),
        16,
        13,
        0,
        0,
    ),
    "imagenet": (Model(layout="imagenet", depth=18), 32, 20, 0, 0),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_accelerated_resnet_computes_the_same_with_the_same_weights(name):
    settings, side, joined, norms, convolutions = MODELS[name]
    keras.utils.set_random_seed(0)
    model = build_resnet(settings, (side, side, 3), 10)
    fast = accelerate(model)
    found = [kinds(fast).count(kind) for kind in ("FastConvNorm", "FastBatchNorm", "FastConv2D")]
    assert found == [joined, norms, convolutions]
    assert not {"BatchNormalization", "FusedBatchNormalization", "ReLU", "LeakyReLU"} & set(
        kinds(fast)
    )
    assert {id(v) for v in fast.variables} == {id(v) for v in model.variables}
    x = random(0, 64, side, side, 3)
    for training in (False, True):
        pairs = zip(
            values(fast, model.variables, x, training),
            values(model, model.variables, x, training),
            strict=True,
        )
        # An activation that is nearly 0 may fall on the other side of it, in a few of many.
        assert max(error(a.numpy(), b.numpy()) for a, b in pairs) < 0.02


def test_a_model_of_ones_own_keeps_what_the_kernels_cannot_do():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("relu"),
            keras.layers.Conv2D(16, 3, padding="same", use_bias=True),
            keras.layers.BatchNormalization(scale=False),
            keras.layers.Conv2D(12, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(16, 3, padding="valid"),
            keras.layers.DepthwiseConv2D(3, padding="same"),
            keras.layers.Conv2D(16, 3, padding="same", dilation_rate=2),
            keras.layers.Conv2D(16, 3, padding="same", groups=2),
            keras.layers.Dropout(0.0),
            keras.layers.Flatten(),
            keras.layers.Dense(5),
        ]
    )
    fast = accelerate(model)
    assert kinds(fast).count("FastConv2D") == 3  # with bias or activation: apart from their norms
    assert kinds(fast).count("FastBatchNorm") == 2
    assert kinds(fast).count("BatchNormalization") == 1
    x = random(0, 8, 16, 16, 3)
    for training in (False, True):
        pairs = zip(
            values(fast, model.variables, x, training),
            values(model, model.variables, x, training),
            strict=True,
        )
        for (
            found,
            expected,
        ) in pairs:  # the gradient of a bias before a norm is 0, give or take rounding
            np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


def test_the_shortcut_of_a_block_goes_through_its_first_convolution():
    inputs = keras.Input((8, 8, 8))
    x = inputs
    for convolutions in (1, 2):  # around one convolution there is no other one to go through
        y = x
        for _ in range(convolutions):
            y = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(y)
            y = keras.layers.BatchNormalization()(y)
        x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    model = keras.Model(inputs, keras.layers.Add()([x, keras.layers.ReLU()(x)]))
    fast = accelerate(model)
    assert kinds(fast).count("FastConvNorm") == 3
    assert [len(layer.outputs) for layer in norms_of(fast)] == [1, 2, 1]
    x = random(0, 4, 8, 8, 8)
    pairs = zip(
        values(fast, model.variables, x, True), values(model, model.variables, x, True), strict=True
    )
    assert max(error(a.numpy(), b.numpy()) for a, b in pairs) < 1e-5


def norms_of(model):
    return [
        node
        for layer in model.layers
        if type(layer).__name__ == "FastConvNorm"
        for node in layer._inbound_nodes
    ]


def test_a_norm_that_two_layers_use_is_computed_once():
    inputs = keras.Input((8, 8, 8))
    norm = keras.layers.BatchNormalization()(inputs)
    model = keras.Model(inputs, keras.layers.Add()([keras.layers.ReLU()(norm), norm]))
    fast = accelerate(model)
    assert kinds(fast).count("FastBatchNorm") == 1
    assert kinds(fast).count("ReLU") == 1
    x = random(0, 4, 8, 8, 8)
    pairs = zip(
        values(fast, model.variables, x, True), values(model, model.variables, x, True), strict=True
    )
    assert max(error(a.numpy(), b.numpy()) for a, b in pairs) < 1e-5


def test_models_of_other_precision_and_subclasses_stay_as_they_are():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    own = Own()
    assert accelerate(own) is own
    inputs = keras.Input((8, 8, 8))
    half = keras.Model(
        inputs, keras.layers.Conv2D(8, 3, padding="same", dtype="mixed_bfloat16")(inputs)
    )
    assert kinds(accelerate(half)).count("FastConv2D") == 0
