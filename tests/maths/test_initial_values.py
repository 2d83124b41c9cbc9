"""Initial values: filters that whiten patches of images, and weights of an earlier run or file."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.errors import UserError
from paceline.experiment.experiment import Average, Experiment, Model, Scaling
from paceline.maths.initial_values import EPSILON, start_from, whiten, whitening_filters
from paceline.maths.state import State, StateLayout
from paceline.maths.template import build_template
from paceline.run_folder.checkpoints import Checkpoints, identity_of
from paceline.run_folder.folder import RunFolder
from paceline.run_folder.given_weights import read_weights
from tiny import EXPERIMENT, SMALL_SPEEDRUN, build_source, build_tiny_core, pictures


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
    averaged = replace(SMALL_SPEEDRUN, average=Average(0.9))
    core = build_tiny_core(averaged, source=source)
    first = core.initial_state()
    state = whiten(first, core.template, source.train, SMALL_SPEEDRUN.scaling, 30)
    images = source.train.read(tf.range(30, dtype=tf.int64))[0].numpy()
    wanted = whitening_filters(images, 2, 1 / np.array(SMALL_SPEEDRUN.scaling.std)).ravel()
    for vector in ("params", "ema"):
        np.testing.assert_array_equal(state.vectors[vector][: len(wanted)], wanted)
        np.testing.assert_array_equal(
            state.vectors[vector][len(wanted) :], first.vectors[vector][len(wanted) :]
        )
    assert not np.array_equal(first.vectors["params"][: len(wanted)], wanted), "it is a copy"


@pytest.mark.parametrize(
    ("scaling", "model", "message"),
    [
        (
            SMALL_SPEEDRUN.scaling,
            Model(depth=8),
            "stem_conv/kernel has 16 filters.*it must have 54",
        ),
        (Scaling("standardize"), SMALL_SPEEDRUN.model, "not standardize"),
    ],
)
def test_whitening_that_does_not_fit_is_a_clear_error(scaling, model, message):
    source = build_source(shape=(32, 32, 3))
    core = build_tiny_core(replace(EXPERIMENT, model=model), source=source)
    with pytest.raises(UserError, match=message):
        whiten(core.initial_state(), core.template, core.train, scaling, 10)


# --- weights of an earlier run


def a_model(classes, seed):
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Conv2D(4, 3),
        keras.layers.BatchNormalization(),
        keras.layers.GlobalAveragePooling2D(),
    ]
    return keras.Sequential([keras.Input((8, 8, 3)), *layers, keras.layers.Dense(classes)])


def started(spec, template, state):
    return start_from(str(spec), read_weights(str(spec)), template, state)


def test_weights_of_a_keras_file_are_taken_and_the_head_starts_new(tmp_path):
    old, template = a_model(3, seed=1), build_template(a_model(5, seed=2))
    old.save(tmp_path / "old.keras")
    fresh = template.initial()
    state, new = started(tmp_path / "old.keras", template, State(0, fresh))
    assert new == ["sequential/dense/kernel", "sequential/dense/bias"]
    kernel = old.layers[0].kernel.numpy().ravel()
    assert np.array_equal(state.vectors["params"][: kernel.size], kernel)
    assert np.array_equal(state.vectors["params"][-25:], fresh["params"][-25:])


def test_weights_of_another_kind_of_model_are_refused(tmp_path):
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="other")]).save(
        tmp_path / "old.keras"
    )
    template = build_template(a_model(5, seed=2))
    with pytest.raises(UserError, match="same architecture"):
        started(tmp_path / "old.keras", template, State(0, template.initial()))


@pytest.mark.parametrize("spec", ["nowhere", "nowhere.keras"])
def test_a_start_that_is_not_there_is_one_clear_line(tmp_path, spec):
    with pytest.raises(UserError, match=r"model\.init-from") as error:
        read_weights(str(tmp_path / spec))
    assert "\n" not in str(error.value)


def test_a_start_from_a_run_with_an_average_takes_the_averages_of_weights_and_statistics(tmp_path):
    template = build_template(a_model(3, seed=1))
    parts = {"params": template.params, "stats": template.stats}
    parts |= {"ema": template.params, "ema_stats": template.stats}
    layout = StateLayout(parts)
    sizes = layout.sizes()
    vectors = {name: np.full(sizes[name], k, np.float32) for k, name in enumerate(parts)}
    run = RunFolder(tmp_path)
    run.open(Experiment(), {"train": 1})
    Checkpoints(run.checkpoints, layout, identity=identity_of(run)).save(State(7, vectors))
    fresh = template.initial()
    averages = {"ema": fresh["params"], "ema_stats": fresh["stats"]}
    state, new = started(tmp_path, template, State(0, fresh | averages))
    assert new == []
    for name, value in {"params": 2, "ema": 2, "stats": 3, "ema_stats": 3}.items():
        np.testing.assert_array_equal(state.vectors[name], np.full(sizes[name], value))
