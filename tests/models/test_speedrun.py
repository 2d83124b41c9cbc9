"""What a short training needs of its images, against NumPy; and the recipe with everything, with
the same bits on one and two workers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from augmented import to_pixels
from helpers import paceline, result_of
from paceline.build import _check_model
from paceline.engines.collective import CollectiveEngine
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Data, Experiment, Scaling
from paceline.maths.initial_values import whiten
from tiny import (
    EXPERIMENT,
    SMALL_SPEEDRUN,
    build_small_model,
    build_source,
    build_tiny_core,
    number,
)

FLAGS = (
    *("train", "cifar10-speedrun", "--data.source", "shapes", "--data.train-size", "80"),
    *("--data.test-size", "30", "--augment.sizes", "16", "--augment.size-epochs", "1"),
    *("--model.width", "8", "--model.whitening", "40", "--global-batch-size", "16"),
    *("--epochs", "2", "--average.decay", "0.5", "--average.power", "1"),
)


# ---- images --------------------------------------------------------------------------------------


def test_small_images_are_reduced_before_they_are_cropped():
    source = build_source(shape=(8, 8, 3))
    settings = replace(SMALL_SPEEDRUN.augment, sizes=(6,), crop_size=9)
    core = build_tiny_core(replace(EXPERIMENT, augment=replace(settings, padding=1)), source=source)
    small = core.phases[0].batch(number(0), number(0))
    large = core.phases[-1].batch(number(3), number(0))
    assert small.images.shape[1:] == (6, 6, 3)
    assert large.images.shape[1:] == (9, 9, 3)
    plain = replace(settings, padding=0, flip=False, brightness=0.0, contrast=0.0)
    experiment = replace(EXPERIMENT, augment=plain, scaling=Scaling("unit"))
    core = build_tiny_core(experiment, source=source)
    batch = core.phases[0].batch(number(0), number(0))
    images, labels = source.train.read(tf.range(source.train.size, dtype=tf.int64))
    reduced = tf.image.resize(images, (6, 6), antialias=True).numpy()
    found = to_pixels(batch.images)
    for image, label in zip(found, batch.labels.numpy(), strict=True):
        near = np.abs(reduced - image).max((1, 2, 3)) < 0.501  # pixels are rounded
        same = near & (labels.numpy() == label)
        assert same.sum() == 1


def test_a_model_for_one_size_only_is_refused_with_the_size():
    experiment = Experiment(augment=Augmentation(sizes=(6,), size_epochs=(1.0,)))
    with pytest.raises(
        UserError, match=r"augment.sizes has 6, but the model does not accept images of"
    ):
        _check_model(experiment, build_small_model())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": (6,)}, "must have the same length"),
        ({"sizes": (6, 7), "size_epochs": (2.0, 1.0)}, "epochs must rise"),
        ({"contrast": 2.0}, "augment.contrast is 2.0; it must be 0 to 1"),
    ],
)
def test_wrong_settings_of_images_are_clear_errors(changes, message):
    with pytest.raises(UserError, match=message):
        replace(EXPERIMENT, augment=replace(EXPERIMENT.augment, **changes))


def test_a_crop_size_and_an_image_size_exclude_each_other():
    with pytest.raises(UserError, match="give one of them"):
        replace(EXPERIMENT, data=Data(image_size=9), augment=Augmentation(crop_size=9))


# ---- all together --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_recipe_learns_and_changes_size_and_frozen_weights_on_the_way():
    core = build_tiny_core(
        replace(SMALL_SPEEDRUN, epochs=6), source=build_source(80, 30, (32, 32, 3))
    )
    assert [phase.first for phase in core.phases] == [0, 4, 5]
    engine = CollectiveEngine(core, tf.distribute.OneDeviceStrategy("/cpu:0"), 2)
    state = whiten(core.initial_state(), core.template, core.train, SMALL_SPEEDRUN.scaling, 40)
    engine.load(state)
    losses = [engine.advance(k, k + 1).losses[0] for k in range(core.plan.total_steps)]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speedrun")
    assert paceline(*FLAGS, "--run-dir", "run", cwd=folder).code == 0
    return folder / "run"


@pytest.mark.slow
def test_two_workers_give_the_same_bits_as_one(alone: Path, tmp_path: Path) -> None:
    """With whitening, Muon, small images first, frozen weights and a scheduled average."""
    assert paceline(*FLAGS, "--run-dir", "run", "--workers", "2", cwd=tmp_path).code == 0
    assert result_of(tmp_path / "run")["state_sha256"] == result_of(alone)["state_sha256"]
