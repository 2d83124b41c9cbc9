"""`Weights`: for people who hold a Keras model themselves."""

import gc
import os

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.extras.weights import Weights


def build_model(seed=0, width=3):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(width, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(2, 1),
            keras.layers.Dropout(0.5),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )


sizes = st.integers(1, 4)


@settings(deadline=None, max_examples=15)
@given(
    channels=sizes,
    convolution=st.none() | st.tuples(sizes, st.integers(1, 3), st.booleans()),
    norm=st.none() | st.booleans(),
    dense=st.lists(sizes, max_size=2),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_set_is_what_is_got(channels, convolution, norm, dense, seed):
    layers = [keras.Input((5, 5, channels))]
    layers += (
        [keras.layers.Conv2D(*convolution[:2], use_bias=convolution[2])] if convolution else []
    )
    layers += [keras.layers.BatchNormalization(scale=norm)] if norm is not None else []
    model = keras.Sequential(
        [*layers, keras.layers.Flatten(), *(keras.layers.Dense(width) for width in dense)]
    )
    weights, random = Weights(model), np.random.default_rng(seed)
    size = sum(int(np.prod(v.shape)) for v in model.weights)
    assert weights.get_flat_size() == size
    vector = random.normal(size=size).astype(np.float32)
    weights.set_flat(vector)
    np.testing.assert_array_equal(weights.get_flat(), vector)
    arrays = weights.get_weights()
    np.testing.assert_array_equal(
        np.concatenate([np.zeros(0), *(a.ravel() for a in arrays.values())]), vector
    )
    weights.set_weights({name: array + 1 for name, array in reversed(arrays.items())})
    np.testing.assert_array_equal(weights.get_flat(), vector + 1)


def test_names_are_those_of_the_layers_and_arrays_have_their_shapes():
    assert {name: array.shape for name, array in Weights(build_model()).get_weights().items()} == {
        "sequential/conv2d/kernel": (3, 3, 2, 3),
        "sequential/conv2d/bias": (3,),
        "sequential/batch_normalization/gamma": (3,),
        "sequential/batch_normalization/beta": (3,),
        "sequential/batch_normalization/moving_mean": (3,),
        "sequential/batch_normalization/moving_variance": (3,),
        "sequential/conv2d_1/kernel": (1, 1, 3, 2),
        "sequential/conv2d_1/bias": (2,),
        "sequential/dense/kernel": (32, 4),
        "sequential/dense/bias": (4,),
    }


def test_two_models_in_one_process_have_the_same_names_and_do_not_collide():
    first, second = (Weights(build_model(seed)) for seed in (0, 1))
    before = second.get_flat()
    assert list(first.get_weights()) == list(second.get_weights())
    assert not np.array_equal(first.get_flat(), before)
    first.set_weights({name: array * 0 + 7 for name, array in first.get_weights().items()})
    np.testing.assert_array_equal(second.get_flat(), before)
    second.set_weights(first.get_weights())
    np.testing.assert_array_equal(second.get_flat(), np.full(len(before), 7))


@pytest.mark.parametrize(
    "take", [Weights.get_flat, lambda w: w.get_weights()["sequential/dense/kernel"]]
)
def test_what_is_got_is_a_copy(take):
    weights = Weights(build_model())
    before, taken = weights.get_flat(), take(weights)
    kept = taken.copy()
    taken += 1
    np.testing.assert_array_equal(weights.get_flat(), before)
    weights.set_flat(before * 2)
    np.testing.assert_array_equal(taken, kept + 1)


def test_what_was_set_is_a_copy():
    weights = Weights(build_model())
    vector = weights.get_flat() + 1
    weights.set_flat(vector)
    kept = vector.copy()
    vector += 5
    np.testing.assert_array_equal(weights.get_flat(), kept)


def without(arrays, name):
    return {key: array for key, array in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda arrays: without(arrays, "sequential/dense/bias"),
            "'sequential/dense/bias' is missing",
        ),
        (lambda arrays: arrays | {"other": np.zeros(3)}, "'other' is unknown to the model"),
        (
            lambda arrays: arrays | {"sequential/dense/bias": np.zeros(5)},
            r"'sequential/dense/bias' has shape \(5,\); the model has \(4,\)",
        ),
        (
            lambda arrays: arrays | {"sequential/dense/bias": np.zeros((4, 1))},
            r"has shape \(4, 1\); the model has \(4,\)",
        ),
        (
            lambda arrays: arrays | {"sequential/dense/bias": np.array(list("abcd"))},
            "'sequential/dense/bias' does not contain numbers",
        ),
    ],
)
def test_wrong_weights_are_a_clear_error_that_changes_nothing(spoil, message):
    weights = Weights(build_model())
    before = weights.get_flat()
    arrays = {name: array + 1 for name, array in weights.get_weights().items()}
    with pytest.raises(UserError, match=message):
        weights.set_weights(spoil(arrays))
    np.testing.assert_array_equal(weights.get_flat(), before)


@pytest.mark.parametrize("shape", [(0,), (1,), (-1,), (1, "size"), ()])
def test_a_vector_of_another_length_is_a_clear_error_that_changes_nothing(shape):
    weights = Weights(build_model())
    before, size = weights.get_flat(), weights.get_flat_size()
    shape = {(-1,): (size - 1,), (1, "size"): (1, size)}.get(shape, shape)
    with pytest.raises(UserError, match=rf"this model needs \({size},\)"):
        weights.set_flat(np.ones(shape))
    np.testing.assert_array_equal(weights.get_flat(), before)


def test_a_model_that_is_not_built_is_a_clear_error():
    with pytest.raises(UserError, match="not built"):
        Weights(keras.Sequential([keras.layers.Dense(3)]))


# --- the optimizer's slots


def compiled(optimizer, seed=0):
    model = build_model(seed)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(model, batches=2):
    random = np.random.default_rng(0)
    for _ in range(batches):
        model.train_on_batch(
            random.normal(size=(4, 6, 6, 2)).astype(np.float32), random.integers(0, 4, 4)
        )


def test_slots_travel_only_on_request():
    model = compiled(keras.optimizers.SGD(0.1, momentum=0.9))
    names = list(Weights(model).get_weights())
    assert not [name for name in names if name.startswith("optimizer")]
    trainable = [name for name in names if "moving" not in name]
    wanted = [f"optimizer/{name}/momentum" for name in trainable]
    assert list(Weights(model, optimizer=True).get_weights()) == names + wanted
    with pytest.raises(UserError, match="needs a compiled model"):
        Weights(build_model(), optimizer=True)


def test_each_slot_has_the_name_of_its_weight():
    """Keras lays Adam's two slots of a weight side by side."""
    model = compiled(keras.optimizers.Adam())
    weights = Weights(model, optimizer=True)
    train(model)
    arrays, named = (
        weights.get_weights(),
        dict(zip(Weights(model).get_weights(), model.weights, strict=True)),
    )
    for kind, slots in (
        ("momentum", model.optimizer._momentums),
        ("velocity", model.optimizer._velocities),
    ):
        for variable, slot in zip(model.trainable_variables, slots, strict=True):
            (name,) = [name for name, weight in named.items() if weight is variable]
            assert (
                np.abs(np.asarray(slot)).max() > 0 or "conv2d/bias" in name
            )  # BatchNorm takes the bias's gradient away
            np.testing.assert_array_equal(arrays[f"optimizer/{name}/{kind}"], np.asarray(slot))


def test_a_model_goes_on_elsewhere_as_if_it_had_not_moved():
    def sgd():
        return keras.optimizers.SGD(0.1, momentum=0.9)

    stay, move = compiled(sgd()), compiled(sgd(), seed=1)
    stay.layers[3].rate = move.layers[3].rate = 0.0  # no dropout: its seeds are not weights
    train(stay)
    there = Weights(move, optimizer=True)
    there.set_weights(Weights(stay, optimizer=True).get_weights())
    train(stay)
    train(move)
    np.testing.assert_allclose(
        Weights(stay).get_flat(), Weights(move).get_flat(), rtol=1e-6, atol=1e-7
    )


# --- memory


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_thousand_settings_leave_memory_where_it_was():
    model = keras.Sequential(
        [keras.Input((500,)), keras.layers.Dense(500), keras.layers.Dense(10)]
    )  # a megabyte of weights
    weights = Weights(model)
    arrays = weights.get_weights()
    for _ in range(20):
        weights.set_weights(arrays)
    gc.collect()
    before = resident_bytes()
    for _ in range(1000):
        weights.set_weights(arrays)
        weights.get_weights()
    gc.collect()
    assert resident_bytes() - before < 8 * 2**20
