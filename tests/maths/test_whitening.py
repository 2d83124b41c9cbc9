"""Filters that whiten patches of images, against NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from paceline.errors import UserError
from paceline.experiment.experiment import Average, Data, Model, Scaling
from paceline.experiment.recipes.table import get_recipe
from paceline.maths.whitening import EPSILON, whiten, whitening_filters
from tiny import EXPERIMENT, build_source, build_tiny_core, pictures

SMALL = replace(
    get_recipe("cifar10-speedrun"),
    data=Data(source="shapes", train_size=80, test_size=30),
    augment=replace(get_recipe("cifar10-speedrun").augment, sizes=(16,), size_epochs=(1.0,)),
    model=replace(get_recipe("cifar10-speedrun").model, width=8, whitening=40),
    global_batch_size=16,
    replicas=2,
    epochs=2,
)


def test_the_covariance_of_whitened_patches_is_the_identity():
    images = pictures(60, (12, 12, 3))[0]
    factors = 1 / np.array([60.0, 50.0, 70.0])
    filters = whitening_filters(images, 2, factors)
    assert filters.shape == (2, 2, 3, 24)
    np.testing.assert_array_equal(filters[..., 12:], -filters[..., :12])
    scaled = tf.constant((images - 100.0) * factors, tf.float32)
    outputs = tf.nn.conv2d(scaled, filters[..., :12], 1, "VALID").numpy().reshape(-1, 12)
    covariance = np.cov(outputs, rowvar=False)
    assert np.abs(covariance - np.eye(12)).max() < 100 * EPSILON  # EPSILON over the least variance


def test_the_chief_puts_the_filters_into_the_first_convolution_and_the_average():
    source = build_source(shape=(32, 32, 3))
    averaged = replace(SMALL, average=Average(0.9))
    core = build_tiny_core(averaged, source=source)
    first = core.initial_state()
    state = whiten(first, core.template, source.train, SMALL.scaling, 30)
    images = source.train.read(tf.range(30, dtype=tf.int64))[0].numpy()
    wanted = whitening_filters(images, 2, 1 / np.array(SMALL.scaling.std)).ravel()
    for vector in ("params", "ema"):
        np.testing.assert_array_equal(state.vectors[vector][: len(wanted)], wanted)
        np.testing.assert_array_equal(
            state.vectors[vector][len(wanted) :], first.vectors[vector][len(wanted) :]
        )
    assert not np.array_equal(first.vectors["params"][: len(wanted)], wanted), "it is a copy"


@pytest.mark.parametrize(
    ("scaling", "model", "message"),
    [
        (SMALL.scaling, Model(depth=8), "stem_conv/kernel has 16 filters.*it must have 54"),
        (Scaling("standardize"), SMALL.model, "not standardize"),
    ],
)
def test_whitening_that_does_not_fit_is_a_clear_error(scaling, model, message):
    source = build_source(shape=(32, 32, 3))
    core = build_tiny_core(replace(EXPERIMENT, model=model), source=source)
    with pytest.raises(UserError, match=message):
        whiten(core.initial_state(), core.template, core.train, scaling, 10)
