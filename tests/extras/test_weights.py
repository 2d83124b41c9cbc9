"""`Weights`: for people who hold a Keras model themselves."""

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


def test_what_is_got_and_what_was_set_are_copies():
    weights = Weights(build_model())
    before = weights.get_flat()
    for taken in (weights.get_flat(), weights.get_weights()["sequential/dense/kernel"]):
        taken += 1
        np.testing.assert_array_equal(weights.get_flat(), before)
    vector = before + 1
    weights.set_flat(vector)
    vector += 5
    np.testing.assert_array_equal(weights.get_flat(), before + 1)


BIAS = "sequential/dense/bias"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda arrays: arrays.pop(BIAS), f"'{BIAS}' is missing"),
        (lambda arrays: arrays.update(other=np.zeros(3)), "'other' is unknown to the model"),
        (lambda arrays: arrays.update({BIAS: np.zeros((4, 1))}), r"has shape \(4, 1\); it needs"),
        (lambda arrays: arrays.update({BIAS: np.array(list("abcd"))}), "<U1, not numbers"),
    ],
)
def test_wrong_weights_are_a_clear_error_that_changes_nothing(spoil, message):
    weights = Weights(build_model())
    before = weights.get_flat()
    arrays = {name: array + 1 for name, array in weights.get_weights().items()}
    spoil(arrays)
    with pytest.raises(UserError, match=message):
        weights.set_weights(arrays)
    np.testing.assert_array_equal(weights.get_flat(), before)


@pytest.mark.parametrize("shape", [(0,), (1,), (-1,), (1, "size"), ()])
def test_a_vector_of_another_length_is_a_clear_error_that_changes_nothing(shape):
    weights = Weights(build_model())
    before, size = weights.get_flat(), weights.get_flat_size()
    shape = {(-1,): (size - 1,), (1, "size"): (1, size)}.get(shape, shape)
    with pytest.raises(UserError, match=rf"this model needs \({size},\)"):
        weights.set_flat(np.ones(shape))
    np.testing.assert_array_equal(weights.get_flat(), before)


def test_a_model_that_is_built_later_has_weights_then_and_a_clear_error_before():
    model = keras.Sequential([keras.layers.Dense(3)])
    weights = Weights(model)
    with pytest.raises(UserError, match="not built"):
        weights.get_flat()
    model(np.zeros([1, 2], np.float32))
    assert weights.get_flat_size() == 9
    assert list(weights.variables.values()) == model.weights
    assert list(weights.variables) == list(weights.get_weights())


def test_some_weights_are_set_only_on_request():
    weights = Weights(build_model())
    before = weights.get_weights()
    weights.set_weights({BIAS: before[BIAS] + 1}, partial=True)
    np.testing.assert_array_equal(weights.get_weights()[BIAS], before[BIAS] + 1)
    kernel = "sequential/dense/kernel"
    np.testing.assert_array_equal(weights.get_weights()[kernel], before[kernel])
    with pytest.raises(UserError, match="'other' is unknown"):
        weights.set_weights({"other": before[BIAS]}, partial=True)


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
    slots = [f"optimizer/{i}" for i in range(len(model.trainable_variables))]
    assert list(Weights(model, optimizer=True).get_weights()) == names + slots
    with pytest.raises(UserError, match="needs a compiled model"):
        Weights(build_model(), optimizer=True)


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
