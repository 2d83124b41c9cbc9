"""The kernels as operations: exact, the same bits from any thread, and clear errors."""

import ctypes
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_checks import compare, error, needs_kernels, random, with_gradients
from paceline.kernels import library, ops, ops_more

pytestmark = needs_kernels

CHANNELS = st.integers(1, 64).map(lambda n: 8 * n)
SIDES = st.integers(1, 13)
MORE_SIDES = st.one_of(SIDES, st.integers(14, 40))


def conv3x3(x, kernel):
    return ops.load().paceline_conv3x3(x, kernel, num_moments=0, forks=0, epsilon=0.0).y


def stock_conv(stride, padding="SAME"):
    return lambda x, kernel: tf.nn.conv2d(x, kernel, stride, padding)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), SIDES, MORE_SIDES, CHANNELS, CHANNELS, st.integers(0, 99))
def test_3x3_convolutions_and_their_gradients_are_as_exact_as_tensorflows(n, h, w, c, k, seed):
    images, kernel = random(seed, n, h, w, c), random(seed + 1, 3, 3, c, k)
    compare(conv3x3, stock_conv(1), [images, kernel], random(seed + 2, n, h, w, k))


def compare_conv(n, h, w, c, k, stride, size, padding, seed):
    if padding == "VALID":
        h, w = h + size - 1, w + size - 1
    images, kernel = random(seed, n, h, w, c), random(seed + 1, size, size, c, k)
    stock = stock_conv(stride, padding)
    dy = random(seed + 2, *stock(images, kernel).shape)
    compare(lambda x, f: ops.conv(x, f, stride, padding), stock, [images, kernel], dy)


STRIDES, SIZES = st.integers(1, 3), st.sampled_from([1, 2, 3, 5, 7])
PADDINGS, SEEDS = st.sampled_from(["SAME", "VALID"]), st.integers(0, 99)
FEW = (st.sampled_from([1, 3, 5, 8, 16]), st.sampled_from([3, 8, 12, 16, 24, 64]))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), SIDES, MORE_SIDES, *FEW, STRIDES, SIZES, PADDINGS, SEEDS)
def test_other_convolutions_and_their_gradients_are_as_exact_as_tensorflows(
    n, h, w, c, k, stride, size, padding, seed
):
    compare_conv(n, h, w, c, k, stride, size, padding, seed)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), SIDES, MORE_SIDES, CHANNELS, CHANNELS, st.integers(1, 2), SEEDS)
def test_1x1_convolutions_of_many_channels_are_as_exact_as_tensorflows(n, h, w, c, k, stride, seed):
    compare_conv(n, h, w, c, k, stride, 1, "SAME", seed)


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


@pytest.mark.slow
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
    x = tf.constant(3 * random(0, 4, 6, 5, 12) + 100)
    _, mean, variance = ops.batch_norm(x, tf.ones(12), tf.zeros(12), [], 1e-5, 0.0)
    rows = np.float64(x).reshape(-1, 12)
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
        norm = [gamma, beta, mean, variance]
        return ops_more.batch_norm_inference(x, norm, list(residual), 1e-5, slope)

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
        x, kernel = map(tf.constant, (3 * random(0, 5, 37, 30, c) + 10, random(1, 3, 3, c, 24)))
        y, (mean, scale, variance), _ = ops.conv_moments(x, kernel, stride, 1e-3, False)
        assert y.numpy().tobytes() == ops.conv(x, kernel, stride).numpy().tobytes()
        rows = np.float64(y).reshape(-1, 24)
        np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(scale, (rows.var(0) + 1e-3) ** -0.5, rtol=1e-5)
        np.testing.assert_allclose(variance, rows.var(0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("c", [3, 16])
@pytest.mark.parametrize("residuals", [0, 1])
@pytest.mark.parametrize("half", [False, True])
def test_a_convolution_with_its_norm_for_inference_and_their_gradients(stride, c, residuals, half):
    norm = [random(2, 24), random(3, 24), random(4, 24), np.abs(random(5, 24)) + 0.5]
    output = (3, -(-21 // stride), -(-18 // stride), 24)
    arguments = [random(0, 3, 21, 18, c), random(1, 3, 3, c, 24), *norm]
    arguments += [random(6, *output)] * residuals

    def together(x, kernel, gamma, beta, mean, variance, *residual):
        norm = [gamma, beta, mean, variance]
        found = ops_more.conv_norm_inference(x, kernel, stride, norm, list(residual), 1e-5, 0.1)
        return ops.widened(found)

    def apart(x, kernel, gamma, beta, mean, variance, *residual):
        y, norm = ops.conv(x, kernel, stride), [gamma, beta, mean, variance]
        return ops.widened(ops_more.batch_norm_inference(y, norm, list(residual), 1e-5, 0.1))

    dy = random(7, *output)
    with ops.within(ops.in_bfloat16, half):
        found = [with_gradients(each, arguments, dy) for each in (together, apart)]
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


def numbers(seed, *shape):
    """Return random numbers, of which some are zero or below the smallest normal number."""
    found = random(seed, *shape)
    return np.choose(np.arange(found.size).reshape(shape) % 7 % 4, [found, found, 1e-39, 0])


@pytest.fixture
def use_avx512():
    """A function that chooses whether products use AVX-512, and AVX512_BF16."""
    ops.load()
    use = ctypes.CDLL(str(library.find_library())).paceline_use_avx512
    yield use
    use(library.uses_avx512(), library.uses_avx512_bf16())


@pytest.mark.parametrize("half", [False, True])
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(1, 3), SIDES, MORE_SIDES, CHANNELS | st.just(3), CHANNELS, STRIDES, SIZES, SEEDS)
def test_avx512_changes_no_bit(use_avx512, half, n, h, w, c, k, stride, size, seed):
    if not {"avx512_bf16" if half else "avx512f"} <= library.cpu_flags():
        pytest.skip("this CPU has no AVX-512")
    images, kernel = numbers(seed, n, h, w, c), numbers(seed, size, size, c, k)
    dy = numbers(seed, n, -(-h // stride), -(-w // stride), k)

    def results(use):
        use_avx512(use, use)
        with ops.within(ops.in_bfloat16, half):
            found = with_gradients(
                lambda x, f: ops.widened(ops.conv(x, f, stride)), [images, kernel], dy
            )
        return [each.tobytes() for each in found]

    assert results(True) == results(False)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), SIDES, MORE_SIDES, CHANNELS | st.just(3), CHANNELS, STRIDES, SIZES, SEEDS)
def test_convolutions_of_bfloat16_are_as_exact_as_it_is(n, h, w, c, k, stride, size, seed):
    """Compared with a convolution of the rounded numbers: results have 8 bits, too."""

    def of_bfloat16(x, f):
        with ops.within(ops.in_bfloat16, True):
            y = ops.conv(x, f, stride)
        assert y.dtype == tf.bfloat16
        return ops.widened(y)

    images, kernel = random(seed, n, h, w, c), random(seed + 1, size, size, c, k)
    dy = random(seed + 2, n, -(-h // stride), -(-w // stride), k)
    halves = (tf.cast(each, tf.bfloat16) for each in (images, kernel, dy))
    images, kernel, dy = (tf.cast(each, tf.float32).numpy() for each in halves)
    found = with_gradients(of_bfloat16, [images, kernel], dy)
    exact = with_gradients(stock_conv(stride), [np.float64(images), np.float64(kernel)], dy)
    for mine, right in zip(found, exact, strict=True):
        assert error(mine, right) < 2**-8
    assert error(found[2], exact[2]) < 1e-4, "the gradient of the filter is float32"


def test_what_is_not_a_number_stays_so_in_bfloat16():
    x = tf.constant([[np.nan, 1, 1, 1, 1, 1, 1, np.inf]], tf.float32)
    with ops.within(ops.in_bfloat16, True):
        y = ops.conv(x[:, None, None], tf.eye(8)[None, None], 1)
    assert np.isnan(ops.widened(y)).all()  # of nan times 0


def half_block(x, kernel, narrow, gamma, beta, residual):
    """Layers of bfloat16: Winograd's, a product, and a norm with a sum."""
    with ops.within(ops.in_bfloat16, True):
        y = ops.conv(ops.conv(x, kernel, 1), tf.transpose(narrow, [0, 1, 3, 2]), 1)
        return ops.widened(ops.batch_norm(y, gamma, beta, [residual], 1e-5, 0.0)[0])


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("residuals", [0, 1])
def test_the_cpus_bfloat16_changes_no_bit_of_norms_and_pooling(use_avx512, slope, residuals):
    if "avx512_bf16" not in library.cpu_flags():
        pytest.skip("this CPU has no AVX512_BF16")
    x = numbers(0, 3, 11, 9, 40)
    norm = [random(1, 40), random(2, 40), *[numbers(3, 3, 11, 9, 40)] * residuals]

    def compute(x, gamma, beta, *residual):
        with ops.within(ops.in_bfloat16, True):
            y, *_ = ops.batch_norm(x, gamma, beta, list(residual), 1e-5, slope)
            return ops.widened(ops.max_pool(y, 3, 2, "SAME"))

    def results(use):
        use_avx512(use, use)
        found = with_gradients(compute, [x, *norm], numbers(4, 3, 6, 5, 40))
        return [each.tobytes() for each in found]

    assert results(True) == results(False)


def test_six_threads_at_once_get_the_same_bits():
    x, kernel, dy = random(0, 8, 17, 13, 24), random(1, 3, 3, 24, 40), random(2, 8, 17, 13, 40)
    residual = random(3, 8, 17, 13, 24)
    found = []

    def compute():
        norm = [x, random(4, 24), random(5, 24), residual]
        results = with_gradients(conv3x3, [x, kernel], dy)
        results += with_gradients(own_norm(0.0), norm, x)
        results += with_gradients(lambda x, f: ops.conv(x, f, 2), [x, kernel], dy[:, :9, :7])
        results += with_gradients(lambda x, f: ops.conv(x, f, 1), [x, kernel[:1, :1]], dy)
        results += with_gradients(half_block, [x, kernel, kernel[:1, :1], *norm[1:]], x)
        found.append([each.tobytes() for each in results])

    threads = [threading.Thread(target=compute) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 6
    assert all(each == found[0] for each in found)


IMAGES, FILTER = (2, 4, 4, 8), (3, 3, 8, 8)


def op(name, *more, **attributes):
    """An operation of the library with these arguments after two tensors."""
    return lambda x, y: getattr(ops.load(), f"paceline_{name}")(x, y, *more, **attributes)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (conv3x3, (IMAGES, (3, 3, 16, 8))),
        (conv3x3, ((2, 4, 4, 12), (3, 3, 12, 8))),
        (conv3x3, (IMAGES, (5, 5, 8, 8))),
        (conv3x3, ((4, 4, 8), FILTER)),
        (conv3x3, (IMAGES, (3, 3, 8, 12))),
        (lambda x, f: ops.conv(x, f, 2), (IMAGES, (3, 3, 3, 8))),
        (lambda x, f: ops.conv(x, f, 1, "VALID"), (IMAGES, (5, 3, 8, 8))),
        (
            lambda x, f: ops.load().paceline_conv_input_gradient(x, f, x, [x[:1]], stride=1),
            (IMAGES, (1, 1, 8, 8)),
        ),
        (lambda x, g: ops.batch_norm(x, g, g, [], 1e-5, 0.0), (IMAGES, (16,))),
        (lambda x, g: ops.batch_norm(x, g, g, [x[:1]], 1e-5, 0.0), (IMAGES, (8,))),
        (lambda x, g: ops.batch_norm(x, g, g, [], 1e-5, 0.0), ((8,), (8,))),
        (lambda x, g: ops_more.batch_norm_inference(x, [g] * 4, [], 1e-5, 0.0), (IMAGES, (16,))),
        (lambda x, m: ops.batch_norm(x, m, m, [], 1e-5, 0.0, [m, m]), (IMAGES, (8,))),
        (lambda x, m: ops.batch_norm(x, m, m, [], 1e-5, 0.0, [m, m, tf.zeros(16)]), (IMAGES, (8,))),
        (
            lambda x, f: ops_more.conv_norm_inference(x, f, 1, [tf.ones(16)] * 4, [], 1e-5, 0.0),
            (IMAGES, FILTER),
        ),
        (
            lambda x, f: ops_more.conv_norm_inference(x, f, 2, [tf.ones(8)] * 4, [x], 1e-5, 0.0),
            (IMAGES, FILTER),
        ),
        (op("conv3x3", num_moments=2, forks=0, epsilon=1e-5), (IMAGES, FILTER)),
        (lambda x, f: ops.load().paceline_conv3x3_input_gradient(x, f, [x[:1]]), (IMAGES, FILTER)),
        (op("conv3x3_filter_gradient"), (IMAGES, (2, 4, 5, 8))),
        (op("conv3x3_filter_gradient"), (IMAGES, (2, 4, 8))),
        (op("conv3x3_input_gradient", []), (IMAGES, (3, 3, 8, 16))),
        (
            lambda x, f: ops.load().paceline_conv_input_gradient(x, f, x, [], stride=2),
            (IMAGES, FILTER),
        ),
        (
            op("conv_filter_gradient", np.zeros(FILTER, np.float32), stride=2),
            (IMAGES, (2, 3, 2, 8)),
        ),
        (
            op("batch_norm_gradient", *[np.zeros(8, np.float32)] * 4, [], slope=0.0),
            ((2, 4, 3, 8), IMAGES),
        ),
        (lambda x: ops.max_pool(x, 2, 2), ((2, 2, 8),)),
        (lambda x: ops.max_pool(x, 2, 2), ((1, 1, 2, 8),)),
        (lambda x, f: ops_more.swish(x, f, tf.zeros(16), 1.0), ((2, 8), (8,))),
    ],
)
def test_shapes_that_do_not_fit_are_errors_in_graphs_and_at_run_time(function, shapes, traced):
    call = tf.function(function, autograph=False) if traced else function
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        call(*(tf.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("shape", [(0, 4, 4, 8), (2, 0, 4, 8), (2, 4, 0, 8)])
def test_empty_images_are_errors(shape):
    for call in (
        lambda x: ops.conv(x, tf.zeros(FILTER), 1),
        lambda x: ops.conv(x, tf.zeros(FILTER), 2),
        lambda x: ops.batch_norm(x, tf.ones(8), tf.ones(8), [], 1e-5, 0.0),
        lambda x: ops.load().paceline_conv3x3_filter_gradient(x, x),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not empty"):
            call(tf.zeros(shape))


# --- max-pooling and z sigmoid(alpha z)

ALPHAS = (1.0, 1.702)


def act(z, alpha):
    return z * tf.sigmoid(tf.cast(alpha, z.dtype) * z)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("shape", [(3, 5, 7, 24), (600, 8), (2, 17, 17, 64)])
def test_swish_after_a_bias_or_a_norm_is_as_exact_as_tensorflows(alpha, shape):
    x, dy = 2 + 3 * random(0, *shape), random(3, *shape)
    arguments = x, random(1, shape[-1]), random(2, shape[-1])
    compare(
        lambda x, factor, offset: ops_more.swish(x, factor, offset, alpha),
        lambda x, factor, offset: act(x * factor + offset, alpha),
        arguments,
        dy,
    )
    compare(
        lambda x, gamma, beta: ops_more.norm_swish(x, gamma, beta, 1e-5, alpha)[0],
        lambda x, gamma, beta: act(stock_norm(1.0)(x, gamma, beta), alpha),
        arguments,
        dy,
    )


def test_extreme_inputs_have_finite_outputs_and_gradients():
    x = np.float32([-1e30, -1e4, -90, -50, 0, 50, 90, 1e4])[None].repeat(2, 0)
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    y, dx, *_ = with_gradients(
        lambda *inputs: ops_more.swish(*inputs, 1.702), (x, ones, zeros), np.ones_like(x)
    )
    np.testing.assert_allclose(y[0], [0, 0, 0, 0, 0, 50, 90, 1e4], atol=1e-6)
    np.testing.assert_allclose(dx[0], [0, 0, 0, 0, 0.5, 1, 1, 1], atol=1e-6)


@pytest.mark.parametrize("window", [(2, 2, "VALID"), (3, 2, "SAME"), (3, 2, "VALID")])
@pytest.mark.parametrize("side", [3, 6, 7, 11])
def test_max_pooling_equals_tensorflows_bit_for_bit(side, window):
    """Also where several numbers of a window are the maximum, as after ReLU. Gradients are whole
    numbers, because windows that overlap add them in different orders."""
    x = np.maximum(random(0, 3, side, side + 1, 12), 0)
    dy = np.round(9 * random(1, *tf.nn.max_pool2d(x, *window).shape))
    own = with_gradients(lambda x: ops.max_pool(x, *window), (x,), dy)
    stock = with_gradients(lambda x: tf.nn.max_pool2d(x, *window), (x,), dy)
    for mine, theirs in zip(own, stock, strict=True):
        np.testing.assert_array_equal(mine, theirs)
