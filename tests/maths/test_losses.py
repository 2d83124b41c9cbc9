"""What training minimises: weights of classes against NumPy and Keras, and float16 with a loss
scale that is part of the state."""

import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from in_process import paceline_here
from paceline.data.source import Split, hold_out
from paceline.data.statistics import balanced_weights, channel_statistics, with_numbers
from paceline.engines.collective import CollectiveEngine
from paceline.experiment.experiment import Experiment, Loss, Scaling
from paceline.maths.after_update import keep_if_finite
from paceline.maths.losses import build_targets, example_weights
from paceline.maths.metrics import Tail
from paceline.maths.state import LOSS_SCALE
from paceline.run_folder.weights import newest_variables
from tiny import (
    EXPERIMENT,
    build_source,
    build_tiny_core,
    call_replica,
    dense_model,
    number,
    pictures,
)

WEIGHTS = tuple(0.25 + 0.5 * k for k in range(10))


def with_weights(weights):
    return replace(EXPERIMENT, loss=Loss(class_weights=weights))


# --- weights of classes


def test_balanced_weights_give_every_class_the_same_sum():
    source = build_source(train=200)
    labels = source.train.read(tf.range(200))[1].numpy()
    found = balanced_weights(source.train, 10)
    counts = np.bincount(labels, minlength=10)
    np.testing.assert_allclose(found, 200 / (10 * counts), rtol=1e-12)
    assert len(set(counts.tolist())) > 3
    assert np.mean(np.array(found)[labels]) == pytest.approx(1)


def test_a_class_without_examples_has_no_weight_and_the_others_share_its_part():
    labels = np.array([0, 0, 0, 2])
    split = Split(4, lambda indices: (None, tf.gather(tf.constant(labels), indices)))
    assert balanced_weights(split, 3) == [4 / (2 * 3), 0.0, 4 / (2 * 1)]


def test_balanced_weights_do_not_read_images_where_labels_are_known():
    def read(indices):
        raise AssertionError("an image was read")

    labels = tf.constant([1, 1, 1, 1, 1], tf.int32)
    split = Split(5, read, lambda indices: tf.gather(labels, indices))
    train, validation = hold_out(replace(build_source(), train=split), 2)
    for part in (split, train, validation):
        assert balanced_weights(part, 2) == [0.0, 1.0]


def test_weights_of_classes_are_in_the_loss_and_the_gradient_as_in_keras():
    core = build_tiny_core(with_weights(WEIGHTS), model := dense_model())
    gradient, _, tail = call_replica(core, step=1, replica=1)
    batch = core.batch(number(1), number(1))
    weights = np.array(WEIGHTS)[batch.labels.numpy()]
    assert len(set(weights.tolist())) > 2
    loss_of = keras.losses.CategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        loss = loss_of(batch.targets, model(batch.images, training=True), sample_weight=weights)
    wanted = tape.gradient(loss, [v.value for v in model.trainable_variables])
    np.testing.assert_allclose(
        gradient, np.concatenate([np.ravel(g) for g in wanted]), rtol=1e-3, atol=2e-6
    )
    assert tail[Tail.LOSS] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_mixed_example_has_the_weights_of_its_classes_by_their_shares(smoothing):
    experiment = Experiment(loss=Loss(smoothing, WEIGHTS))
    targets = build_targets(experiment, 10)
    share = np.float32([[0.25], [1.0]])
    mixed = share * targets(tf.constant([3, 9])) + (1 - share) * targets(tf.constant([7, 0]))
    wanted = [0.25 * WEIGHTS[3] + 0.75 * WEIGHTS[7], WEIGHTS[9]]
    np.testing.assert_allclose(example_weights(experiment, mixed), wanted, rtol=1e-5)


def test_equal_weights_change_nothing_but_the_scale_of_the_loss():
    plain, doubled = (
        build_tiny_core(with_weights(weights), dense_model()) for weights in ((), (2.0,) * 10)
    )
    np.testing.assert_allclose(
        call_replica(doubled)[0], 2 * call_replica(plain)[0], rtol=1e-5, atol=1e-7
    )


def test_the_wrong_number_of_weights_is_one_line(tmp_path: Path) -> None:
    ended = paceline_here("train", "smoke", "--loss.class-weights", "1", "2", cwd=tmp_path)
    assert ended.code == 2
    assert "loss.class-weights has 2 numbers, but there are 10 classes" in ended.err
    assert "Traceback" not in ended.err


def test_means_from_the_data_are_those_of_numpy():
    for shape in ((8, 8, 3), (8, 8, 1)):
        source = build_source(train=300, shape=shape)
        images = pictures(300, shape, seed=0)[0].reshape(-1, shape[2]).astype(float)
        mean, std = channel_statistics(Experiment(), source.train)
        np.testing.assert_allclose(mean, np.resize(images.mean(0), 3), rtol=1e-12)
        np.testing.assert_allclose(std, np.resize(images.std(0), 3), rtol=1e-9)


def test_means_of_flat_images_divide_by_one():
    flat = Split(
        3,
        lambda indices: (
            tf.fill([tf.size(indices), 4, 4, 3], tf.constant(7, tf.uint8)),
            tf.zeros_like(indices),
        ),
    )
    assert channel_statistics(Experiment(), flat) == ((7.0,) * 3, (1.0,) * 3)
    numbers = with_numbers(Experiment(scaling=Scaling(mean="auto")), flat, 10, {})
    assert numbers.scaling == Scaling(mean=(7.0,) * 3, std=(1.0,) * 3)


# --- float16


@pytest.fixture(scope="module")
def half():
    """The core of an experiment in float16."""
    try:
        return build_tiny_core(
            replace(EXPERIMENT, precision="float16", replicas=3, global_batch_size=12)
        )
    finally:
        keras.config.set_dtype_policy("float32")


def trained(core, strategy, scale, steps=3):
    """The state after some steps from a loss scale."""
    engine = CollectiveEngine(core, strategy, side_by_side=1)
    first = core.initial_state()
    first.vectors[LOSS_SCALE] = np.array([scale, 0], np.float32)
    engine.load(first)
    block = engine.advance(0, steps)
    return first, engine.state(), block


@pytest.mark.slow
def test_float16_trains_with_a_loss_scale_in_its_state(half, mirrored):
    first, state, block = trained(half, mirrored(1), 2.0**10)
    assert list(state.vectors) == ["params", "momentum", "loss_scale", "stats"]
    assert state.vectors["loss_scale"].tolist() == [2.0**10, 3]
    assert not np.array_equal(state.vectors["params"], first.vectors["params"])
    exact = build_tiny_core(replace(half.experiment, precision="float32"))
    engine = CollectiveEngine(exact, mirrored(1), side_by_side=1)
    engine.load(exact.initial_state())
    wanted = engine.advance(0, 3)
    assert block.losses == pytest.approx(wanted.losses, rel=0.05)


def test_a_step_that_overflows_changes_nothing_but_the_scale(half, mirrored):
    first, state, block = trained(half, mirrored(1), 2.0**29, steps=1)
    assert state.vectors["loss_scale"].tolist() == [2.0**28, 0]
    for name in ("params", "momentum", "stats"):
        np.testing.assert_array_equal(state.vectors[name], first.vectors[name])
    assert np.isfinite(block.losses).all()


@pytest.mark.slow
def test_all_workers_skip_the_same_steps_and_have_the_same_bits(half, mirrored):
    states = [trained(half, mirrored(count), 2.0**18, steps=6)[1] for count in (1, 3)]
    assert len({state.sha256() for state in states}) == 1
    scale, finite = states[0].vectors["loss_scale"]
    assert scale < 2.0**18
    assert finite > 0  # it found its scale and went on


def test_the_scale_grows_after_many_finite_steps_within_its_limits():
    def after(scale, count, finite):
        vectors = {LOSS_SCALE: tf.constant([scale, count])}
        gradient = tf.constant([1.0, 0.0 if finite else np.nan])
        return keep_if_finite(vectors, {}, gradient)[LOSS_SCALE].numpy().tolist()

    assert after(8.0, 5.0, True) == [8.0, 6]
    assert after(8.0, 1999.0, True) == [16.0, 0]
    assert after(2.0**30, 1999.0, True) == [2.0**30, 0]
    assert after(8.0, 1999.0, False) == [4.0, 0]
    assert after(1.0, 3.0, False) == [1.0, 0]


def train(folder: Path, *flags: str) -> str:
    folder.mkdir(exist_ok=True)
    fixed = ("--steps", "3", "--precision", "float16", "--run-dir", "run", "--evaluate-every", "0")
    ended = paceline_here("train", "smoke", *fixed, *flags, cwd=folder)
    assert ended.code == 0, ended.err
    return json.loads((folder / "run/result.json").read_text())["state_sha256"]


@pytest.mark.slow
def test_a_run_keeps_its_loss_scale_and_the_numbers_from_its_data(tmp_path: Path) -> None:
    from_data = ("--loss.class-weights", "balanced", "--scaling.mean", "auto")
    train(tmp_path / "parts", *from_data, "--stop-at", "2")
    resumed = train(tmp_path / "parts", *from_data)
    facts = json.loads((tmp_path / "parts/run/config.json").read_text())["data"]
    by_hand = (
        "--scaling.mean",
        *map(repr, facts["mean"]),
        "--scaling.std",
        *map(repr, facts["std"]),
    )
    by_hand += ("--loss.class-weights", *map(repr, facts["class_weights"]))
    assert train(tmp_path / "whole", *by_hand) == resumed
    scale = newest_variables(tmp_path / "parts/run/checkpoints", ("loss_scale",))
    assert {name: float(value) for name, value in scale.items()} == {
        "scale": 2.0**15,
        "finite_steps": 3,
    }
    target = str(tmp_path / "model.keras")
    export = paceline_here("export", "run", target, "--to", "keras", cwd=tmp_path / "parts")
    assert export.code == 0, export.err
    scaling = keras.saving.load_model(target).get_layer("scaling")
    np.testing.assert_allclose(np.ravel(scaling.mean), facts["mean"], rtol=1e-6)
