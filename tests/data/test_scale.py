"""Scalings equal NumPy."""

import numpy as np
import tensorflow as tf

from augmented import PLAIN, train_batch
from paceline.data.augment.scale import scale
from paceline.data.batches import build_eval_batches
from paceline.data.source import in_memory
from paceline.experiment.experiment import Experiment, Scaling
from tiny import number


def test_scalings_agree_with_numpy():
    unit, raw, _ = train_batch(PLAIN)
    raw = raw.astype(np.float64)
    np.testing.assert_array_equal(unit.images.numpy(), raw / 128 - 1)
    mean, std = (10.0, 20.0, 30.0), (2.0, 50.0, 60.0)
    by_channel, _, _ = train_batch(PLAIN, scaling=Scaling("mean_std", mean, std))
    np.testing.assert_allclose(by_channel.images.numpy(), (raw - mean) / std, rtol=1e-5, atol=1e-6)
    standardized, _, _ = train_batch(PLAIN, scaling=Scaling("standardize"))
    centered = raw - raw.mean((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(
        standardized.images.numpy(),
        centered / raw.std((1, 2, 3), keepdims=True),
        rtol=1e-4,
        atol=1e-5,
    )


def test_standardizing_a_flat_image_gives_zeros_not_nan():
    flat = np.full((4, 8, 8, 3), 77, np.uint8)
    batch = build_eval_batches(
        Experiment(scaling=Scaling("standardize")), in_memory(flat, np.zeros(4, int)), 10, 4
    )(number(0))
    np.testing.assert_array_equal(batch.images.numpy(), np.zeros_like(flat))


def test_gray_images_are_scaled_by_the_first_channels_numbers():
    batch, raw, _ = train_batch(
        PLAIN, shape=(8, 6, 1), scaling=Scaling("mean_std", (10.0, 0.0, 0.0), (4.0, 1.0, 1.0))
    )
    np.testing.assert_allclose(batch.images.numpy(), (raw.astype(np.float64) - 10) / 4, rtol=1e-6)


def test_scaling_takes_means_and_deviations():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 3), np.uint8)
    mean, std = (
        np.array([123.68, 116.78, 103.94], np.float32),
        np.array([58.4, 57.1, 57.4], np.float32),
    )
    data = {"mean": tuple(mean.tolist()), "std": tuple(std.tolist())}
    np.testing.assert_array_equal(
        scale(Scaling("mean", **data), tf.constant(pixels)), pixels - mean
    )
    np.testing.assert_array_equal(
        scale(Scaling("mean_std", **data), tf.constant(pixels)), (pixels - mean) / std
    )
