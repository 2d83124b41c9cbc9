"""A Keras model as a function of flat vectors, and models that cannot be one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.errors import UserError
from paceline.maths.template import build_template
from tiny import EXPERIMENT, build_small_model, build_tiny_core, call_replica, dense_model


class Counter(keras.layers.Layer):
    """Keeps an integer, which cannot be averaged."""

    def build(self, shape):
        self.calls = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls"
        )

    def call(self, x):
        return x


def test_two_dropout_layers_drop_different_units():
    x = keras.Input((1000,))
    model = keras.Model(
        x,
        keras.layers.Dropout(0.5)(x)
        - keras.layers.Dropout(0.5)(x)
        + 0 * keras.layers.Dense(1000)(x),
    )
    template = build_template(model)
    state = template.initial()
    key = tf.constant([1, 2], tf.int64)
    arguments = tf.constant(state["params"]), tf.constant(state["stats"]), tf.ones([1, 1000])
    outputs, _, _ = template.call(*arguments, training=True, key=key)
    assert 300 < (outputs.numpy() != 0).sum() < 700
    still, _, _ = template.call(*arguments, training=False)
    np.testing.assert_array_equal(still.numpy(), np.zeros((1, 1000)))


def test_an_integer_variable_is_a_clear_error():
    with pytest.raises(
        UserError, match=r"sequential/counter/calls is int32; .* make it a float or remove it"
    ):
        build_template(dense_model(Counter()))


def test_a_model_without_trainable_weights_is_a_clear_error():
    model = dense_model()
    model.trainable = False
    with pytest.raises(UserError, match="no trainable weights"):
        build_template(model)


def test_a_model_without_statistics_has_an_empty_vector_of_them():
    core = build_tiny_core(EXPERIMENT, dense_model())
    assert core.layout.sizes()["stats"] == 0
    gradient, stats, _ = call_replica(core)
    assert len(stats) == 0
    assert len(gradient) == 192 * 10 + 10


def test_assigning_the_vectors_puts_them_into_the_keras_model():
    model = build_small_model()
    template = build_template(model)
    other = build_template(build_small_model(seed=5)).initial()
    before = template.initial()
    assert not np.array_equal(before["params"], other["params"])
    template.assign(other["params"], other["stats"] + 1)
    np.testing.assert_array_equal(template.initial()["params"], other["params"])
    np.testing.assert_array_equal(template.initial()["stats"], other["stats"] + 1)
