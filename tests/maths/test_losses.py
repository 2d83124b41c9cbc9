"""What training minimizes: class weights and numbers from the data, against NumPy and Keras."""

import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from in_process import paceline_here
from paceline.data.source import Split, hold_out
from paceline.data.statistics import (
    balanced_weights,
    channel_statistics,
    example_weights,
    with_numbers,
)
from paceline.experiment.experiment import Experiment, Loss, Scaling
from paceline.maths.losses import build_targets
from paceline.maths.metrics import Tail
from paceline.run_folder.given_weights import newest_variables
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
    batch = core.phases[0].batch(number(1), number(1))
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
    seven = tf.constant(7, tf.uint8)
    flat = Split(3, lambda indices: (tf.fill([tf.size(indices), 4, 4, 3], seven), indices))
    assert channel_statistics(Experiment(), flat) == ((7.0,) * 3, (1.0,) * 3)
    numbers = with_numbers(Experiment(scaling=Scaling(mean="auto")), flat, 10, {})
    assert numbers.scaling == Scaling(mean=(7.0,) * 3, std=(1.0,) * 3)


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
    by_hand = ["--scaling.mean", *facts["mean"], "--scaling.std", *facts["std"]]
    by_hand = map(str, [*by_hand, "--loss.class-weights", *facts["class_weights"]])
    assert train(tmp_path / "whole", *by_hand) == resumed
    scale = newest_variables(tmp_path / "parts/run/checkpoints", ("loss_scale",))
    assert scale == {"scale": 2.0**15, "finite_steps": 3}
    target = str(tmp_path / "model.keras")
    export = paceline_here("export", "run", target, "--to", "keras", cwd=tmp_path / "parts")
    assert export.code == 0, export.err
    scaling = keras.saving.load_model(target).get_layer("scaling")
    np.testing.assert_allclose(np.ravel(scaling.mean), facts["mean"], rtol=1e-6)
