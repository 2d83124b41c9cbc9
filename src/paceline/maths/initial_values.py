"""Initial values that are not the model's own: stored weights, or filters from the data."""

import math
from itertools import combinations

import numpy as np
import tensorflow as tf

from paceline.data.source import Split
from paceline.errors import UserError
from paceline.experiment.experiment import Scaling
from paceline.maths.state import State, StateLayout, evaluated_vectors
from paceline.maths.template import Template

CHUNK = 500
"""Images whose patches are in memory at a time."""
EPSILON = 5e-4
"""Added to variances, so that directions with almost no variance are not enlarged without limit."""


def start_from(
    spec: str, stored: dict[str, np.ndarray], template: Template, state: State
) -> tuple[State, list[str]]:
    """Return the state with every stored array whose name and shape fit, and the names of the rest.

    `stored` has the arrays of a model by the names of its variables. `spec` says where they are
    from, for the error if most do not fit; what does not fit (the head) stays new.
    """
    layout, new = StateLayout({"params": template.params, "stats": template.stats}), list[str]()
    filled = {name: state.vectors[name].copy() for name in layout.parts}
    pieces = list(layout.pieces())
    for vector, path, at, shape in pieces:
        name = path.removeprefix(f"{vector}/")
        # a Sequential model that was built as one puts its own name first; loaded from a file, it
        # does not
        array = stored.get(name, stored.get(name.partition("/")[2]))
        if array is not None and array.shape == shape:
            filled[vector][at] = array.ravel()
        else:
            new.append(name)
    if len(new) > (count := len(pieces)) // 2:
        raise UserError(
            f"model.init-from {spec} fits only {count - len(new)} of {count} variables; {new[0]}, "
            "for example, does not fit. Use weights of the same architecture"
        )
    averages = dict(zip(evaluated_vectors(state.vectors), filled.values(), strict=True))
    return State(state.step, {**state.vectors, **averages, **filled}), new


def whiten(state: State, template: Template, train: Split, scaling: Scaling, count: int) -> State:
    """Return the state with filters of the first convolution that whiten patches of `count` images.
    The chief computes them once, before the first step."""
    pieces = StateLayout({"params": template.params}).pieces()
    if not (found := [piece for piece in pieces if len(piece[3]) == 4]):
        raise UserError("model.whitening needs a model with a convolution")
    _, path, at, (side, _, channels, filters) = found[0]
    if filters != 2 * side * side * channels:
        raise UserError(
            f"model.whitening: {path.removeprefix('params/')} has {filters} filters; for patches "
            f"of {side}x{side} pixels of {channels} channels it must have "
            f"{2 * side * side * channels}"
        )
    images = train.read(tf.range(min(count, train.size), dtype=tf.int64))[0]
    if images.dtype != tf.uint8:
        raise UserError("model.whitening needs images of one size; these are files of any size")
    kernel = whitening_filters(images.numpy(), side, _factors(scaling, channels)).ravel()
    vectors = dict(state.vectors)
    for vector in {"params", "ema"} & vectors.keys():
        vectors[vector] = vectors[vector].copy()
        vectors[vector][at] = kernel
    return State(state.step, vectors)


def whitening_filters(images: np.ndarray, side: int, factors: np.ndarray) -> np.ndarray:
    """Return float32 [side, side, channels, filters]: the eigenvectors of the covariance of patches
    over the roots of their eigenvalues, then the same, negative.

    `images` are uint8; the filters are for images whose channels are multiplied by `factors`. Sums
    of whole numbers below 2**53 are exact in any order, so threads do not change them.
    """
    channels = images.shape[3]
    size, count = side * side * channels, 0
    total, products = np.zeros(size), np.zeros((size, size))
    for some in np.array_split(images, -(-len(images) // CHUNK)):
        windows = np.lib.stride_tricks.sliding_window_view(some, (side, side), axis=(1, 2))
        patches = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, size).astype(np.float64)
        count += len(patches)
        total += patches.sum(0)
        products += patches.T @ patches
    if count * 255.0**2 >= 2**53:
        raise UserError("model.whitening: too many images for exact sums; use fewer")
    covariance = (products - np.outer(total, total) / count) / count
    scale = np.tile(factors, side * side)
    values, vectors = eigenvectors(covariance * np.outer(scale, scale))
    largest = np.abs(vectors).argmax(0)
    vectors = vectors * np.sign(vectors[largest, np.arange(size)])
    filters = vectors / np.sqrt(np.maximum(values, 0) + EPSILON)
    both = np.concatenate([filters, -filters], 1)
    return both.reshape(side, side, channels, -1).astype(np.float32)


def eigenvectors(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues of a symmetric matrix, rising, and the eigenvectors as columns.

    Jacobi's rotations need only + - x / and square roots of doubles, in one order: the bits of
    LAPACK depend on the CPU.
    """
    left, vectors = matrix.copy(), np.eye(len(matrix))
    for _ in range(60):  # about 8 are needed
        if not sum(_rotate(left, vectors, *pair) for pair in combinations(range(len(matrix)), 2)):
            break
    order = np.argsort(np.diag(left), kind="stable")
    return np.diag(left)[order], vectors[:, order]


def _rotate(left: np.ndarray, vectors: np.ndarray, p: int, q: int) -> bool:
    """Make element [p, q] zero by a rotation; return False if none is needed."""
    if abs(left[p, q]) <= 1e-18 * math.sqrt(abs(left[p, p] * left[q, q])):
        left[p, q] = left[q, p] = 0.0
        return False
    slope = (left[q, q] - left[p, p]) / (2.0 * left[p, q])
    tangent = math.copysign(1.0, slope) / (abs(slope) + math.sqrt(slope * slope + 1.0))
    cosine = 1.0 / math.sqrt(tangent * tangent + 1.0)
    for x in (left, left.T, vectors):
        one, other = x[:, p].copy(), x[:, q].copy()
        x[:, p] = cosine * one - tangent * cosine * other
        x[:, q] = tangent * cosine * one + cosine * other
    return True


def _factors(scaling: Scaling, channels: int) -> np.ndarray:
    """Return by what scaling multiplies each channel; what it adds does not change a covariance."""
    known = {"unit": np.full(3, 1 / 128), "mean": np.ones(3), "mean_std": 1 / np.array(scaling.std)}
    if scaling.method not in known:
        raise UserError(
            f"model.whitening needs scaling.method unit, mean or mean_std, not {scaling.method}"
        )
    return known[scaling.method][:channels]
