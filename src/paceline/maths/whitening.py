"""Initial values from the data: filters of the first convolution that whiten patches of images.

The chief computes them once, before the first step. The sums over pixels are exact, so they do not
depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from paceline.data.source import Split
from paceline.errors import UserError
from paceline.experiment.experiment import Scaling
from paceline.maths.state import State
from paceline.maths.template import Template

CHUNK = 500
"""Images whose patches are in memory at a time."""
EPSILON = 5e-4
"""Added to variances, so that directions with almost no variance are not enlarged without limit."""


def whiten(state: State, template: Template, train: Split, scaling: Scaling, count: int) -> State:
    """Return the state with filters of the first convolution computed from `count` images."""
    name, shape, start = _first_convolution(template)
    side, _, channels, filters = shape
    if filters != 2 * side * side * channels:
        raise UserError(
            f"model.whitening: {name} has {filters} filters; for patches of {side}x{side} pixels "
            f"of {channels} channels it must have {2 * side * side * channels}"
        )
    images = train.read(tf.range(min(count, train.size), dtype=tf.int64))[0]
    if images.dtype != tf.uint8:
        raise UserError("model.whitening needs images of one size; these are files of any size")
    kernel = whitening_filters(images.numpy(), side, _factors(scaling, channels)).ravel()
    vectors = dict(state.vectors)
    for vector in {"params", "ema"} & vectors.keys():
        vectors[vector] = vectors[vector].copy()
        vectors[vector][start : start + len(kernel)] = kernel
    return State(state.step, vectors)


def whitening_filters(images: np.ndarray, side: int, factors: np.ndarray) -> np.ndarray:
    """Return float32 [side, side, channels, filters]: the eigenvectors of the covariance of patches
    over the roots of their eigenvalues, then the same, negative.

    `images` are uint8; the filters are for images whose channels are multiplied by `factors`. Sums
    of whole numbers below 2**53 are exact in any order.
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
    values, vectors = np.linalg.eigh(covariance * np.outer(scale, scale))
    largest = np.abs(vectors).argmax(0)
    vectors = vectors * np.sign(vectors[largest, np.arange(size)])
    filters = vectors / np.sqrt(np.maximum(values, 0) + EPSILON)
    both = np.concatenate([filters, -filters], 1)
    return both.reshape(side, side, channels, -1).astype(np.float32)


def _first_convolution(template: Template) -> tuple[str, tuple[int, ...], int]:
    """Return name, shape and offset in the vector of the first filter tensor."""
    start = 0
    for name, shape in template.params:
        if len(shape) == 4:
            return name, tuple(shape), start
        start += math.prod(shape)
    raise UserError("model.whitening needs a model with a convolution")


def _factors(scaling: Scaling, channels: int) -> np.ndarray:
    """Return by what scaling multiplies each channel; what it adds does not change a covariance."""
    if scaling.method not in ("unit", "mean", "mean_std"):
        raise UserError(
            f"model.whitening needs scaling.method unit, mean or mean_std, not {scaling.method}"
        )
    if scaling.method == "unit":
        return np.full(channels, 1 / 128)
    if scaling.method == "mean":
        return np.ones(channels)
    return 1 / np.asarray(scaling.std[:channels])
