"""Warm start: weights of an earlier run or of a .keras file."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from paceline.errors import UserError
from paceline.maths.state import State, StateLayout
from paceline.maths.template import build_template
from paceline.maths.warm_start import start_from
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.starting_weights import read_weights


def a_model(classes: int, seed: int) -> keras.Model:
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
    with pytest.raises(UserError, match="same kind of model"):
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
    (tmp_path / "config.json").write_text("{}")
    Checkpoints(tmp_path / "checkpoints", layout).save(State(7, vectors))
    fresh = template.initial()
    averages = {"ema": fresh["params"], "ema_stats": fresh["stats"]}
    state, new = started(tmp_path, template, State(0, fresh | averages))
    assert new == []
    for name, value in {"params": 2, "ema": 2, "stats": 3, "ema_stats": 3}.items():
        np.testing.assert_array_equal(state.vectors[name], np.full(sizes[name], value))
