"""What one replica computes: its gradients against independent computations, and models of every
kind a person may bring."""

import itertools
import threading
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from paceline.build import build_model
from paceline.data.batches import Batch
from paceline.experiment.experiment import Experiment, Loss
from paceline.maths.metrics import Tail
from paceline.maths.replica import Step, run_side_by_side
from tiny import (
    CLASSES,
    EXPERIMENT,
    SHAPE,
    build_small_model,
    build_tiny_core,
    call_replica,
    dense_model,
    number,
)


class OwnLayer(keras.layers.Layer):
    """A person's own: trainable scale, a statistic that moves in training, behaviour that depends
    on `training`."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=False):
        if training:
            self.seen.assign(self.seen + keras.ops.mean(x))
        return x * self.scale

    def compute_output_shape(self, shape):
        return shape


def by_keras(core, model, step=0, replica=0, from_logits=True):
    """Gradient, loss and statistics by the tape over the model's own variables with Keras's loss;
    the model itself moves."""
    batch = core.phases[0].batch(number(step), number(replica))
    loss_of = keras.losses.CategoricalCrossentropy(from_logits=from_logits)
    with tf.GradientTape() as tape:
        outputs = model(batch.images, training=True)
        loss = tf.add_n([loss_of(batch.targets, outputs), *model.losses])
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    correct = (outputs.numpy().argmax(1) == batch.labels.numpy()).sum()
    stats = [np.ravel(v) for v in model.non_trainable_variables if "float" in str(v.dtype)]
    gradient = np.concatenate([np.ravel(g) for g in gradients])
    return gradient, np.concatenate([np.zeros(0), *stats]), float(loss), correct


def check_against_keras(experiment, model, **options):
    core = build_tiny_core(experiment, model)
    gradient, stats, tail = call_replica(core, step=1, replica=1)
    wanted, wanted_stats, loss, correct = by_keras(core, model, step=1, replica=1, **options)
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=2e-6)
    np.testing.assert_allclose(stats, wanted_stats, rtol=1e-4, atol=1e-6)
    assert tail[Tail.LOSS] == pytest.approx(loss, rel=1e-5)
    assert (tail[Tail.CORRECT], tail[Tail.COUNT], tail[Tail.STOP]) == (correct, 4, 0)
    return core


@pytest.mark.parametrize(
    "build", [lambda: build_model(EXPERIMENT, SHAPE, CLASSES), build_small_model]
)
def test_gradients_and_statistics_of_a_resnet_and_of_kerass_batchnorm_agree_with_keras(build):
    check_against_keras(EXPERIMENT, build())


def test_label_smoothing_is_in_the_loss_and_the_gradient():
    smooth = replace(EXPERIMENT, loss=Loss(label_smoothing=0.3))
    core = check_against_keras(smooth, dense_model())
    plain = build_tiny_core(EXPERIMENT, dense_model())
    assert np.abs(call_replica(core)[0] - call_replica(plain)[0]).max() > 1e-3


def test_the_mean_of_new_statistics_is_the_update_by_the_mean_of_the_batches():
    """Why statistics may be averaged with the gradients: their update is linear."""
    core = build_tiny_core(EXPERIMENT, build_small_model())
    old = core.initial_state().vectors["stats"]
    new = [call_replica(core, replica=replica)[1] for replica in range(4)]
    assert all(np.abs(a - b).max() > 1e-4 for a, b in itertools.pairwise(new))
    batches = [(n.astype(float) - 0.9 * old) / 0.1 for n in new]
    np.testing.assert_allclose(
        np.mean(new, axis=0), 0.9 * old + 0.1 * np.mean(batches, axis=0), rtol=1e-5
    )


def test_a_request_to_stop_travels_in_the_tail():
    assert call_replica(build_tiny_core(EXPERIMENT, dense_model()), stop=1.0)[2][Tail.STOP] == 1


def test_dropout_repeats_exactly_and_differs_by_step_replica_seed_and_layer():
    def gradient(step=0, replica=0, seed=11):
        core = build_tiny_core(
            replace(EXPERIMENT, seed=seed), dense_model(keras.layers.Dropout(0.5))
        )
        labels = tf.constant([1, 2, 3, 4])
        batch = Batch(tf.ones([4, *SHAPE]), tf.one_hot(labels, CLASSES), labels, tf.ones([4]))
        state = core.initial_state().vectors
        weights = [tf.constant(state[name]) for name in ("params", "stats")]
        now = Step(number(step), number(replica), tf.zeros([2]))
        return core.phases[0].replica_step(*weights, batch, now).numpy()

    first = gradient()
    np.testing.assert_array_equal(gradient(), first)
    for other in ({"step": 1}, {"replica": 1}, {"step": 1, "replica": 1}, {"seed": 12}):
        assert (gradient(**other) != first).mean() > 0.2


def test_dropout_is_off_in_evaluation():
    core = build_tiny_core(EXPERIMENT, dense_model(keras.layers.Dropout(0.5)))
    plain = build_tiny_core(EXPERIMENT, dense_model())
    rows = []
    for each in (core, plain):
        vectors = map(tf.constant, each.template.initial().values())
        rows.append(each.examine["test"](*vectors, number(0)).row)
    np.testing.assert_array_equal(*rows)


def test_a_regulariser_counts_in_the_loss_and_the_gradient():
    regularised = dense_model(kernel_regularizer=keras.regularizers.L2(0.1))
    core = check_against_keras(EXPERIMENT, regularised)
    plain = build_tiny_core(EXPERIMENT, dense_model())
    assert call_replica(core)[2][Tail.LOSS] > call_replica(plain)[2][Tail.LOSS] + 0.1


def test_a_model_with_a_persons_own_layers_trains():
    core = check_against_keras(EXPERIMENT, dense_model(OwnLayer()))
    assert [name for name, _ in core.layout.parts["stats"]] == ["sequential/own_layer/seen"]
    assert call_replica(core, replica=0)[1] != call_replica(core, replica=1)[1]


def test_a_layer_that_is_frozen_keeps_its_weights():
    frozen = keras.layers.Dense(6, trainable=False)
    core = check_against_keras(EXPERIMENT, dense_model(frozen))
    np.testing.assert_array_equal(call_replica(core)[1], core.initial_state().vectors["stats"])
    assert core.layout.sizes()["stats"] == 192 * 6 + 6


def test_probabilities_give_the_gradients_of_logits():
    probabilities = replace(EXPERIMENT, model=replace(EXPERIMENT.model, outputs="probabilities"))
    core = check_against_keras(probabilities, dense_model(activation="softmax"), from_logits=False)
    logits = build_tiny_core(EXPERIMENT, dense_model())
    np.testing.assert_allclose(call_replica(core)[0], call_replica(logits)[0], rtol=1e-3, atol=1e-6)
    assert call_replica(core)[2][Tail.LOSS] == pytest.approx(
        call_replica(logits)[2][Tail.LOSS], rel=1e-5
    )


def test_a_probability_of_zero_gives_a_large_loss_not_an_infinite_one():
    probabilities = replace(EXPERIMENT, model=replace(EXPERIMENT.model, outputs="probabilities"))
    core = build_tiny_core(probabilities, dense_model(activation="softmax"))
    state = core.initial_state().vectors
    gradient, _, tail = call_replica(core, state=state | {"params": state["params"] * 1e4})
    assert 1 < tail[Tail.LOSS] < 20
    assert np.isfinite(gradient).all()


def test_bfloat16_layers_keep_a_float32_state():
    experiment: Experiment = replace(EXPERIMENT, precision="bfloat16")
    try:
        core = build_tiny_core(experiment)
    finally:
        keras.config.set_dtype_policy("float32")
    exact = build_tiny_core(EXPERIMENT)
    (rough, stats, tail), (gradient, _, exact_tail) = call_replica(core), call_replica(exact)
    assert rough.dtype == stats.dtype == np.float32
    assert core.initial_state().vectors["params"].dtype == np.float32
    assert tail[Tail.LOSS] == pytest.approx(exact_tail[Tail.LOSS], rel=0.05)
    cosine = rough @ gradient / np.linalg.norm(rough) / np.linalg.norm(gradient)
    assert 0.9 < cosine < 0.99999


def test_a_regulariser_of_bfloat16_outputs_counts_in_the_float32_loss():
    losses = []
    for policy, strength in [("mixed_bfloat16", 0.1), ("mixed_bfloat16", 0.0), ("float32", 0.1)]:
        keras.utils.set_random_seed(4)  # the layer draws its own seed when it is made
        layer = keras.layers.Dense(
            6, dtype=policy, activity_regularizer=keras.regularizers.L2(strength)
        )
        core = build_tiny_core(EXPERIMENT, dense_model(layer, dtype="float32"))
        losses.append(call_replica(core)[2][Tail.LOSS])
    regularised, plain, exact = losses
    assert regularised > plain + 0.01
    assert regularised == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_next_batch_is_prepared_while_a_replica_computes_if_it_may_be(ahead):
    """The first replica waits for the second one's batch, in vain if that begins afterwards."""
    prepared = threading.Event()

    def run(given):  # an operation without an input is computed before all others
        def call(function):
            return tf.numpy_function(lambda _: function(), [given], tf.float32, stateful=False)

        def first(after):
            return call(lambda: np.float32(prepared.wait(20.0 if ahead else 0.3)))

        def second(after):
            batch = call(lambda: prepared.set() or np.float32(2))
            with tf.control_dependencies(after):
                return batch + 1

        return run_side_by_side([first, second], 1, ahead)

    results = tf.function(run, autograph=False)(tf.constant(0.0))
    assert [float(each) for each in results] == [ahead, 3.0]
