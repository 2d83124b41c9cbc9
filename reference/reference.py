"""Paceline's arithmetic in NumPy alone: a second implementation, to read and to compare with.

    python reference/reference.py run/config.json      # trains again, prints the digest of the state

It trains a ResNet for small images (`model.layout` small, version v1, basic blocks, shortcut A) on
the drawn shapes, with SGD, for any number of replicas, in float32 or bfloat16. Every rounding
and the order of every sum are the ones of docs/arithmetic.md, so the digest is the one that
`paceline train` prints. It is slow: two minutes for the recipe `smoke`.
"""

import hashlib
import json
import math
import sys
from functools import reduce

import numpy as np

from paceline.data.shapes import draw_shapes  # the images; no TensorFlow

F, D, U = np.float32, np.float64, np.uint64


# ---- 1. Numbers -----------------------------------------------------------------------------------


def fma(a, b, c):
    """Return a b + c, rounded once."""
    return fma_to_odd(a, b, c).astype(F)


def fma_to_odd(a, b, c):
    """Return a b + c in double. The product is exact. The sum is rounded to odd, so that rounding it
    to float32 is not a second rounding (Boldo and Melquiond 2008)."""
    product, c = np.asarray(a, D) * np.asarray(b, D), np.asarray(c, D)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return (bits + np.where((error != 0) & (bits & 1 == 0), step, 0)).view(D)


def bfloat16(x):
    """Return x rounded to the upper half of its bits, ties to even; 0 below the smallest normal number."""
    bits = np.where(np.abs(x) < 2.0**-126, F(0) * x, x).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(F)


def half_product(a, b):
    """Return the matrix product of numbers rounded to bfloat16: a chain of fma along k, of each pair the
    second number first. A sum below the smallest normal number becomes 0."""
    odd = a.shape[-1] % 2
    a, b = bfloat16(np.pad(a, ((0, 0), (0, odd)))), bfloat16(np.pad(b, ((0, odd), (0, 0))))
    total = np.zeros((len(a), b.shape[1]), F)
    for k in range(a.shape[1]):
        exact = fma_to_odd(a[:, k ^ 1, None], b[k ^ 1], total)
        tiny = np.abs((exact * 2.0**32).astype(F)) < 2.0**-94  # as rounding without a smallest exponent says
        total = np.where(tiny, 0 * exact, exact).astype(F)
    return total


def product(a, b):
    """Return the matrix product [..., m, k] [..., k, n]: each number is a chain of fma along k."""
    total = np.zeros((*a.shape[:-1], b.shape[-1]), F)
    for k in range(a.shape[-1]):
        total = fma(a[..., k, None], b[..., k, None, :], total)
    return total


def row_sum(rows):
    """Return the sum over the rows of [n, c], in double, one row after the other."""
    return reduce(np.add, rows.astype(D), np.zeros(rows.shape[1], D))


def norm_sum(add, *arrays):
    """Return a sum over the rows of [n, c] as a norm takes it, in double.

    Channels, filled up to a multiple of 8, are made 32 or more by taking 2 or 4 rows as one. 256 such rows, a chunk, are added in
    float32 by `add(sum, row of each array)`, the chunks in double. Rows that are left are a chunk.
    """
    n, c = arrays[0].shape
    times = 1
    while -(-c // 8) * 8 * times < 32:
        times *= 2
    full = n // times * times
    wide = [x[:full].reshape(-1, times * c) for x in arrays]
    total = np.zeros(times * c, D)
    for first in range(0, full // times, 256):
        part = np.zeros(times * c, F)
        for rows in zip(*(x[first : first + 256] for x in wide), strict=True):
            part = add(part, *rows)
        total += part
    if full < n:
        rest = [x[full:].ravel() for x in arrays]
        total[: rest[0].size] += add(np.zeros(rest[0].size, F), *rest)
    return row_sum(total.reshape(times, c))


def exponential(x):
    """Return e^x by Cody and Waite's reduction and the polynomial of Cephes."""
    x = np.minimum(np.maximum(x, F(-87)), F(87))
    n = np.rint(x * F(1.44269504088896341))
    r = fma(-n, F(-2.12194440e-4), fma(-n, F(0.693359375), x))
    p = F(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, F(coefficient))
    return fma(p, r * r, r + F(1)) * ((n.astype(np.int32) + 127) << 23).view(F)


def logarithm(x):
    """Return the natural logarithm of a double from its series: ln m = 2 (t + t^3/3 + ...)."""
    m, exponent = math.frexp(x)
    if m < 0.70710678118654752:
        m, exponent = 2 * m, exponent - 1
    t = (m - 1) / (m + 1)
    series = 0.0
    for k in range(27, 0, -2):
        series = series * (t * t) + 1.0 / k
    return exponent * 0.69314718055994531 + 2 * t * series


# ---- 2. Random numbers ----------------------------------------------------------------------------


def mix(x):
    """Return the splitmix64 hash of each number."""
    x = x + U(0x9E3779B97F4A7C15)
    x = (x ^ (x >> U(30))) * U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U(27))) * U(0x94D049BB133111EB)
    return x ^ (x >> U(31))


def key_of(text):
    """Return 64 bits that depend on a text alone."""
    return U(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))


def draw(name, seed, epoch, indices):
    """Return a number below 2**31 for each example."""
    start = mix(np.array([key_of(name) ^ U(seed)]))
    return (mix(indices.astype(U) + mix(start + U(epoch))) >> U(33)).astype(np.int64)


def shuffled(positions, size, seed, epoch):
    """Return a permutation of range(size) at some positions: the block cipher Simon with 8 rounds
    on as many bits as `size` needs, applied again where it leads beyond `size`."""
    word = max(8, -(-(size - 2).bit_length() // 2))
    mask = 2**word - 1

    def left(x, by):
        return ((x << by) | (x >> (word - by))) & mask

    def mixed(x):
        return left(x, 1) & left(x, 8) ^ left(x, 2)

    keys, bits = [each & mask for each in (seed, epoch, 0x9ACE)], 0x7369F885192C0EF5 & mask
    while len(keys) < 8:
        turned = left(keys[-1], word - 3) ^ left(keys[-1], word - 4)
        keys.append(0xFFFFFFFC & mask ^ bits & 1 ^ keys[-3] ^ turned)
        bits >>= 1
    values, beyond = positions, np.ones(len(positions), bool)
    while beyond.any():
        high, low = values >> word, values & mask
        for one, two in zip(keys[::2], keys[1::2], strict=True):
            high = high ^ mixed(low) ^ one
            low = low ^ mixed(high) ^ two
        values = np.where(beyond, high << word | low, values)
        beyond = values >= size
    return values


def initial_kernel(kind, layer, seed, shape):
    """Return the first weights of a layer [..., inputs, outputs]."""
    key, size, area = key_of(f"weights/{layer}/{seed}"), math.prod(shape), math.prod(shape[:-2])
    if kind == "glorot_uniform":
        deviation = math.sqrt(1.0 / ((area * shape[-2] + area * shape[-1]) / 2))
        words = (mix(key + np.arange(size, dtype=U)) >> U(40)).astype(np.int64)
        numbers = math.sqrt(3.0) * deviation * ((2 * words + 1 - 2**24) / 2**24)
    else:  # he_fan_out: sums of twelve numbers of 16 bits are nearly normal
        words = mix(key + np.arange(3 * size, dtype=U)).astype("<u8").view("<u2")
        sums = words.reshape(size, 12).sum(1, dtype=np.int64)
        numbers = math.sqrt(2.0 / (area * shape[-1])) * ((sums - 6 * 65535) / 65536)
    return numbers.astype(F).reshape(shape)


# ---- 3. Layers: each returns its output and a function from its gradient to those of its inputs ---

A, B = D(0.70710678118654752), D(1.41421356237309505)  # the points of Winograd's method: 0, +-A, +-B
A2, B2 = A * A, B * B
N0, NA, NB = A2 * B2, 2 * A2 * (A2 - B2), 2 * B2 * (B2 - A2)


def input_points(d):
    """Six pixels to six points."""
    even_a, odd_a = fma(-F(B2), d[2], d[4]), fma(-F(B2), d[1], d[3])
    even_b, odd_b = fma(-F(A2), d[2], d[4]), fma(-F(A2), d[1], d[3])
    first, last = (fma(F(N0), d[k], fma(-F(A2 + B2), d[k + 2], d[k + 4])) for k in (0, 1))
    at_a = fma(F(A), odd_a, even_a), fma(-F(A), odd_a, even_a)
    return first, *at_a, fma(F(B), odd_b, even_b), fma(-F(B), odd_b, even_b), last


def output_pixels(m):
    """Six points to four pixels."""
    sum_a, diff_a = m[1] + m[2], F(A) * (m[1] - m[2])
    sum_b, diff_b = m[3] + m[4], m[3] - m[4]
    last = fma(F(B2 * B), diff_b, fma(F(A2), diff_a, m[5]))
    return (m[0] + sum_a) + sum_b, fma(F(B), diff_b, diff_a), fma(F(B2), sum_b, F(A2) * sum_a), last


def output_points(y):
    """Four pixels of the output's gradient to six points."""
    even_a, odd_a = fma(F(A2), y[2], y[0]), fma(F(A2), y[3], y[1])
    even_b, odd_b = fma(F(B2), y[2], y[0]), fma(F(B2), y[3], y[1])
    at_a = fma(F(A), odd_a, even_a), fma(-F(A), odd_a, even_a)
    return y[0], *at_a, fma(F(B), odd_b, even_b), fma(-F(B), odd_b, even_b), y[3]


def filter_points(g):
    """Three weights to six points."""
    even_a = fma(F(A2 / NA), g[2], F(1 / NA) * g[0])
    even_b = fma(F(B2 / NB), g[2], F(1 / NB) * g[0])
    at_a = fma(F(A / NA), g[1], even_a), fma(-F(A / NA), g[1], even_a)
    at_b = fma(F(B / NB), g[1], even_b), fma(-F(B / NB), g[1], even_b)
    return F(1 / N0) * g[0], *at_a, *at_b, g[2]


def filter_weights(u):
    """Six points to the gradients of three weights."""
    sum_a, diff_a, sum_b, diff_b = u[1] + u[2], u[1] - u[2], u[3] + u[4], u[3] - u[4]
    first = fma(F(1 / NB), sum_b, fma(F(1 / NA), sum_a, F(1 / N0) * u[0]))
    middle = fma(F(B / NB), diff_b, F(A / NA) * diff_a)
    return first, middle, fma(F(B2 / NB), sum_b, fma(F(A2 / NA), sum_a, u[5]))


def twice(transform, x):
    """Apply a transform along axis 0 and then along axis 1."""
    x = np.stack(transform(x))
    return np.stack(transform(x.swapaxes(0, 1)), 1)


def tiles(x, size, before):
    """Return [size, size, tiles, channels]: a tile begins at every fourth pixel."""
    rows, columns = (-(-side // 4) for side in x.shape[1:3])
    after = [4 * k + size - 4 - before - side for k, side in zip((rows, columns), x.shape[1:3], strict=True)]
    x = np.pad(x, ((0, 0), (before, after[0]), (before, after[1]), (0, 0)))
    parts = [[x[:, i : i + 4 * rows : 4, j : j + 4 * columns : 4] for j in range(size)] for i in range(size)]
    return np.array(parts).reshape(size, size, -1, x.shape[3])


def winograd(x, w):
    """Return a 3x3 convolution with stride 1 by Winograd's method F(4x4, 3x3)."""
    n, height, width, _ = x.shape
    points = product(twice(input_points, tiles(x, 6, 1)), twice(filter_points, w))
    shape = 4, 4, n, -(-height // 4), -(-width // 4), -1
    pixels = twice(output_pixels, points).reshape(shape).transpose(2, 3, 0, 4, 1, 5)
    return pixels.reshape(n, 4 * shape[3], 4 * shape[4], -1)[:, :height, :width]


def conv(x, w, stride, store=F):
    """A convolution with SAME padding, Winograd's with stride 1, except on images. `store`, F or bfloat16, rounds images."""
    if stride == 1 and x.shape[3] > 3:

        def gradients(dy):
            points = twice(input_points, tiles(x, 6, 1)).swapaxes(2, 3)
            dw = twice(filter_weights, product(points, twice(output_points, tiles(dy, 4, 0))))
            return store(winograd(dy, w[::-1, ::-1].swapaxes(2, 3))), dw

        return store(winograd(x, w)), gradients
    multiply = product if store is F else half_product
    size, (n, height, width, c) = w.shape[0], x.shape
    if store is bfloat16 and c % 2:  # a pair is of one pixel
        x, w = (np.pad(each, [(0, k == axis) for k in range(4)]) for each, axis in ((x, 3), (w, 2)))
    tall, wide = -(-height // stride), -(-width // stride)
    down, right = (max(0, (out - 1) * stride + size - side) for out, side in ((tall, height), (wide, width)))
    top, left = down // 2, right // 2
    padded = np.pad(x, ((0, 0), (top, down - top), (left, right - left), (0, 0)))

    def under(array, i, j):  # the pixels under weight (i, j) of the filter
        return array[:, i : i + (tall - 1) * stride + 1 : stride, j : j + (wide - 1) * stride + 1 : stride]

    taps = list(np.ndindex(size, size))
    windows = np.stack([under(padded, *tap) for tap in taps], 3).reshape(n * tall * wide, -1)
    weights = w.reshape(-1, w.shape[3])

    def gradients(dy):
        dy = dy.reshape(-1, w.shape[3])
        parts, dx = multiply(dy, weights.T).reshape(n, tall, wide, len(taps), -1), np.zeros_like(padded)
        for k in reversed(range(len(taps))):  # what a pixel gets, in the order of the output pixels
            under(dx, *taps[k])[...] += parts[:, :, :, k]
        dx, dw = dx[:, top : top + height, left : left + width, :c], multiply(windows.T, dy).reshape(w.shape)
        return store(dx), dw[:, :, :c]

    return store(multiply(windows, weights).reshape(n, tall, wide, -1)), gradients


def batch_norm(x, gamma, beta, epsilon, residual=None, store=F, relu=True):
    """relu(gamma (x - mean) / deviation + beta [+ residual]), and the batch's mean and variance."""
    c = x.shape[3]
    rows, n = x.reshape(-1, c), D(x.size // c)
    centered = rows - rows[0]
    mean = norm_sum(np.add, centered) / n
    variance = np.maximum(0.0, norm_sum(lambda s, d: fma(d, d, s), centered) / n - mean * mean)
    scale = (1 / np.sqrt(variance + D(F(epsilon)))).astype(F)
    mean, unbiased = (rows[0] + mean).astype(F), (variance * n / max(1.0, n - 1)).astype(F)
    factor = gamma * scale
    offset = beta - mean * factor
    z = fma(x, factor, offset) if residual is None else fma(x, factor, offset) + residual
    y = store(np.where(z > 0, z, F(0)) if relu else z)

    def gradients(dy):
        dz = np.where((z if residual is None else y) > 0, dy, F(0)) if relu else dy
        flat = dz.reshape(-1, c)
        total = norm_sum(np.add, flat)
        moment = norm_sum(lambda s, d, v: fma(d, v, s), flat, rows - mean)
        f, of_x = factor.astype(D), -factor.astype(D) * scale * scale * moment / n
        constant = (-f * total / n - of_x * mean).astype(F)
        dx = fma(factor, dz, fma(of_x.astype(F), x, constant))
        return store(dx), (moment * scale).astype(F), total.astype(F), dz

    return y, (mean, unbiased), gradients


def cross_entropy(logits, targets):
    """Return the gradient of the mean cross-entropy by the logits."""
    shifted = logits - logits.max(1, keepdims=True)
    powers = exponential(shifted)
    totals = row_sum(powers.T)[:, None]
    return (powers / totals - targets).astype(F) * (F(1) / F(len(logits)))


# ---- 4. The model ---------------------------------------------------------------------------------


class ResNet:
    """A ResNet for small images (He et al. 2015), as functions of a list of weights."""

    def __init__(self, settings, num_classes, precision="float32"):
        self.settings, self.width = settings, settings["width"] or 16
        self.store, self.product = (F, product) if precision == "float32" else (bfloat16, half_product)
        self.blocks = (settings["depth"] - 2) // 6
        self.layers = [("stem_conv", (3, 3, 3, self.width))]  # name and shape, each but the head with a norm
        channels = self.width
        for stage in range(3):
            for block in range(self.blocks):
                out = self.width * 2**stage
                name = f"stage{stage + 1}_block{block + 1}"
                self.layers.append((f"{name}_conv1", (3, 3, channels, out)))
                self.layers.append((f"{name}_conv2", (3, 3, out, out)))
                channels = out
        self.head = "head_dense", (channels, num_classes)

    def initial(self, seed):
        """Return weights and statistics of step 0."""
        params, stats = [], []
        for name, shape in self.layers:
            params += [initial_kernel("he_fan_out", name, seed, shape), np.ones(shape[3], F), np.zeros(shape[3], F)]
            stats += [np.zeros(shape[3], F), np.ones(shape[3], F)]
        params += [initial_kernel("glorot_uniform", self.head[0], seed, self.head[1]), np.zeros(self.head[1][1], F)]
        return params, stats

    def gradients(self, params, stats, images, targets):
        """Return the gradients of all weights and the new statistics on one replica's batch."""
        settings, store, found, moments, backward = self.settings, self.store, [None] * len(params), [], []

        def conv_norm(x, number, stride, residual=None):
            at = 3 * number
            y, conv_back = conv(x, params[at], stride, store)
            y, batch, norm_back = batch_norm(y, *params[at + 1 : at + 3], settings["norm_epsilon"], residual, store)
            moments.extend(batch)

            def back(dy):
                dy, found[at + 1], found[at + 2], dresidual = norm_back(dy)
                dx, found[at] = conv_back(dy)
                return dx, dresidual

            return y, back

        x, back = conv_norm(images, 0, 1)
        backward.append(back)
        number = 1
        for stage in range(3):
            for block in range(self.blocks):
                stride = 2 if stage and not block else 1
                inner, back1 = conv_norm(x, number, stride)
                missing = inner.shape[3] - x.shape[3]
                edges = ((0, 0),) * 3 + ((missing // 2, missing - missing // 2),)
                y, back2 = conv_norm(inner, number + 1, 1, np.pad(x[:, ::stride, ::stride], edges))

                def block_back(dy, shape=x.shape, back1=back1, back2=back2, stride=stride, below=edges[3][0]):
                    d_inner, d_shortcut = back2(dy)
                    other = np.zeros(shape, F)
                    other[:, ::stride, ::stride] = d_shortcut[..., below : below + shape[3]]
                    return store(back1(d_inner)[0] + other), None

                backward.append(block_back)
                x, number = y, number + 2
        area = x.shape[1] * x.shape[2]
        mean = np.stack([row_sum(image.reshape(area, -1)) / area for image in x]).astype(F)
        d_logits = cross_entropy(self.product(mean, params[-2]) + params[-1], targets)
        found[-2], found[-1] = self.product(mean.T, d_logits), row_sum(d_logits).astype(F)
        dy = store(store(self.product(d_logits, params[-2].T)) * (F(1) / F(area)))[:, None, None]
        for back in reversed(backward):
            dy = back(dy)[0]
        kept = settings["norm_momentum"]
        return found, [old * F(kept) + new * F(1.0 - kept) for old, new in zip(stats, moments, strict=True)]


# ---- 5. Training ----------------------------------------------------------------------------------


def cosine(x):
    """Return the cosine of x in [0, pi] from a series."""
    y = x - math.pi / 2
    total, term, k = 0.0, y, 1
    while abs(term) > 1e-18:
        total += term
        term *= -y * y / ((k + 1) * (k + 2))
        k += 2
    return -total


def learning_rate(schedule, step, steps_per_epoch, total_steps):
    """Return the rate of a step: a linear warm-up, then half a cosine or a line down."""
    rising = round(schedule["warmup"] * steps_per_epoch)
    if step < rising:
        return schedule["rate"] * (schedule["warmup_from"] + (1 - schedule["warmup_from"]) * (step + 1) / rising)
    done = (step - rising) / max(1, total_steps - rising)
    left = (1 + cosine(math.pi * done)) / 2 if schedule["name"] == "cosine" else 1 - done
    return schedule["rate"] * (schedule["final"] + (1 - schedule["final"]) * left)


def batch_of(experiment, images, step, replica, steps_per_epoch):
    """Return the indices and images of one replica in a step: cropped, flipped and scaled."""
    seed, size = experiment["seed"], experiment["global_batch_size"] // experiment["replicas"]
    epoch, position = step // steps_per_epoch, step % steps_per_epoch * experiment["global_batch_size"]
    indices = shuffled(position + replica * size + np.arange(size), len(images), seed, epoch)
    pad, side = experiment["augment"]["padding"], images.shape[1]
    padded = np.pad(images[indices], ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    top, left = (draw(f"crop/{axis}", seed, epoch, indices) % (2 * pad + 1) for axis in ("row", "column"))
    flips = (draw("flip", seed, epoch, indices) % 2 == 1) & experiment["augment"]["flip"]
    crops = np.empty_like(images[indices])
    for k, image in enumerate(padded):
        crop = image[top[k] : top[k] + side]
        columns = np.arange(side)[:: -1 if flips[k] else 1] + left[k]
        crops[k] = crop[:, columns]
    mean, std = (np.array(experiment["scaling"][name], F) for name in ("mean", "std"))
    return indices, (crops.astype(F) - mean) * (F(1) / std)


def tree_sum(values):
    """Return the sum over replicas: halves of the range are added, down to single replicas."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return tree_sum(values[:middle]) + tree_sum(values[middle:])


def train(experiment):
    """Return the state after the last step, as the vectors params, momentum and stats."""
    images, labels = draw_shapes(0, experiment["data"]["train_size"] or 20_000)
    optimizer, replicas = experiment["optimizer"], experiment["replicas"]
    model = ResNet(experiment["model"], 10, experiment["precision"])
    params, stats = model.initial(experiment["seed"])
    shapes, stat_sizes = [p.shape for p in params], [s.size for s in stats]
    decay = np.concatenate([np.full(p.size, optimizer["weight_decay"] * (p.ndim > 1), F) for p in params])
    vector, stats = np.concatenate([p.ravel() for p in params]), np.concatenate(stats)
    velocity, momentum = np.zeros_like(vector), F(optimizer["momentum"])
    steps_per_epoch = len(images) // experiment["global_batch_size"]
    total_steps = experiment["steps"] or max(1, round(experiment["epochs"] * steps_per_epoch))
    for step in range(total_steps):
        cuts = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        params = [p.reshape(shape) for p, shape in zip(np.split(vector, cuts), shapes, strict=True)]
        vectors = []
        for replica in range(replicas):
            indices, batch = batch_of(experiment, images, step, replica, steps_per_epoch)
            targets = np.eye(10, dtype=F)[labels[indices]]
            found, new = model.gradients(params, np.split(stats, np.cumsum(stat_sizes)[:-1]), batch, targets)
            vectors.append(np.concatenate([each.ravel() for each in (*found, *new)]))
        mean = tree_sum(vectors) * (F(1) / F(replicas))
        gradient, stats = mean[: vector.size], mean[vector.size :]
        if optimizer["weight_decay"]:
            gradient = gradient + decay * vector
        velocity = momentum * velocity + gradient
        direction = gradient + momentum * velocity if optimizer["nesterov"] else velocity
        rate = F(learning_rate(experiment["schedule"], step, steps_per_epoch, total_steps))
        vector = vector - rate * direction
        print(f"step {step + 1} of {total_steps}", file=sys.stderr)
    return vector, velocity, stats


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        config = json.load(file)
    digest = hashlib.sha256()
    for each in train(config.get("experiment", config)):
        digest.update(each.astype("<f4").tobytes())
    print(digest.hexdigest())
