"""Python is as good as the command line: settings by name, and models and data of a notebook."""

import inspect
from dataclasses import replace
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest

import paceline
from helpers import result_of
from paceline import Experiment, Place, Run, UserError
from paceline.api import notebook_code as shipping
from paceline.api import training

WIDTH = 4
VERBS = "train search evaluate predict export report runs load"
SMALL = {"data": {"train_size": 32, "test_size": 16}, "steps": 2, "global_batch_size": 8}


def settings_of(*arguments: object, **settings: object) -> training.Job:
    """Return the job that `train` would run."""
    with mock.patch.object(training, "launch", side_effect=RuntimeError) as launch:
        with pytest.raises(RuntimeError):
            paceline.train(*arguments, **settings)
        return launch.call_args.args[0]


def test_only_public_names_are_listed() -> None:
    assert set(dir(paceline)) == set(paceline.__all__)


def test_settings_by_name_are_those_of_the_flags() -> None:
    job = settings_of("cifar10-fast", epochs=2, optimizer={"weight_decay": 1e-4}, workers=2)
    recipe = paceline.get_recipe("cifar10-fast")
    changed = replace(recipe.optimizer, weight_decay=1e-4)
    assert job.experiment == replace(recipe, epochs=2.0, optimizer=changed)
    assert (job.place, job.run.run_dir) == (
        Place(workers=2),
        f"runs/cifar10-fast-{job.experiment.digest()}",
    )


def test_all_ways_to_write_a_setting_are_the_same() -> None:
    one = settings_of("smoke", optimizer={"weight_decay": 1e-3}, workers=2, keep=5)
    other = settings_of(
        "smoke", optimizer__weight_decay=np.float64(1e-3), workers=2, keep=np.int64(5)
    )
    third = settings_of(
        "smoke", **{"optimizer.weight-decay": 1e-3}, place=Place(workers=2), run=Run(keep=5)
    )
    assert one == other == third == settings_of("smoke", wd=1e-3, workers=2, keep=5)
    assert settings_of("smoke", sync=paceline.Sync(every=3)).experiment.sync.every == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 2}, "unknown setting 'epoch'; did you mean 'epochs'?"),
        ({"max_epochs": 2}, "unknown setting 'max_epochs'; did you mean 'epochs'?"),
        ({"num_gpus": 2}, "unknown setting 'num_gpus'; pass --gpus N"),
        ({"batch_size": 30}, "global-batch-size 30 cannot be divided among 4 replicas"),
        (
            {"optimizer": {"weight_dekay": 1}},
            "unknown setting 'optimizer.weight_dekay'; did you mean 'optimizer.weight_decay'?",
        ),
        ({"optimizer": "adam"}, "optimizer.name is 'adam'; it must be one of 'sgd', 'adamw'"),
        ({"schedule": 1}, "unknown setting 'schedule'; it has several settings: give a dict"),
        ({"epochs": "two"}, "epochs is 'two'; it must be a number"),
        ({"devices": "tpu"}, "devices is 'tpu'; it must be one of"),
        ({"workers": 0}, "workers is 0; it must be 1 or more"),
        ({"model": lambda image_shape, num_classes: None}, "a function with a name"),
        ({"model": 3}, "model is a int; it must be a function, a keras.Model"),
        ({"data": 3}, "data is a int; it must be (images, labels), a folder, a function"),
        ({"classes": ["a"]}, "test and classes need data"),
    ],
)
def test_a_wrong_setting_is_refused_like_a_wrong_flag(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError) as error:
        paceline.train("smoke", **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def build_small(image_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    image = keras.Input(image_shape)
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(WIDTH, 3)(image))
    return keras.Model(image, keras.layers.Dense(num_classes)(x))


def in_a_cell(width: int):
    def helper(x):
        return keras.layers.Conv2D(width, 3)(x)

    def build(image_shape, num_classes):
        image = keras.Input(image_shape)
        x = keras.layers.GlobalAveragePooling2D()(helper(image))
        return keras.Model(image, keras.layers.Dense(num_classes)(x))

    return build


def test_a_function_is_shipped_as_source_with_what_it_uses(library_here: Path) -> None:
    spec = shipping.ship_function(in_a_cell(5), "model")
    file, name = spec.split(":")
    assert name == "build"
    assert Path(file).parent == library_here / "cache" / "code"
    space: dict[str, object] = {}
    exec(Path(file).read_text(), space)
    assert space["build"]((8, 8, 3), 10).count_params() == 5 * 28 + 6 * 10
    assert shipping.ship_function(in_a_cell(5), "model") == spec  # the same code, the same run
    assert shipping.ship_function(in_a_cell(6), "model") != spec
    assert shipping.ship_function(build_small, "model") == f"{__file__}:build_small"


def test_what_cannot_be_shipped_as_source_is_named() -> None:
    pixels = np.zeros(3)

    def build(image_shape, num_classes):
        return pixels

    with pytest.raises(UserError, match="model uses pixels, a ndarray, which cannot be shipped"):
        shipping.ship_function(build, "model")


def test_a_model_function_trains_as_the_same_file_does_on_the_command_line(
    library_here: Path,
) -> None:
    result = paceline.train("smoke", model=in_a_cell(4), progress=False, **SMALL)
    assert result.run_dir.startswith("runs/smoke-")
    again = paceline.train("smoke", model=in_a_cell(4), progress=False, **SMALL)
    assert again == result
    found = paceline.evaluate(result)  # its own code needs no trust
    assert found.accuracy == result.test_accuracy
    with pytest.raises(UserError, match="--trust-code"):
        paceline.evaluate(result.run_dir)
    assert [row.state for row in paceline.runs()] == ["finished"]


def test_a_keras_model_trains_from_its_weights_and_arrays_leave_runs(library_here: Path) -> None:
    keras.utils.set_random_seed(1)
    model = build_small((8, 8, 3), 3)
    images = np.random.default_rng(0).integers(0, 256, [40, 8, 8, 3], np.uint8)
    data = (images, np.arange(40) % 3)
    settings = {"data": data, "model": model, "steps": 1, "global_batch_size": 8, "progress": False}
    experiment = Experiment(replicas=1)
    result = paceline.train(experiment, **settings, schedule__rate=0.0, optimizer__weight_decay=0.0)
    assert result.run_dir.startswith("runs/arrays-functional")
    assert [path.name for path in Path("runs").iterdir()] == [Path(result.run_dir).name]
    loaded = paceline.load(result)
    for trained, given in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(trained, given)
    assert not list(library_here.rglob("*.pkl"))


@pytest.mark.slow
def test_data_can_be_a_function(library_here: Path) -> None:
    def build(data):
        import tensorflow as tf

        from paceline import Source, Split

        def read(indices):
            images = tf.zeros([tf.shape(indices)[0], 8, 8, 3], tf.uint8)
            return images, tf.cast(indices % 2, tf.int32)

        return Source(Split(16, read), Split(6, read), ("a", "b"), (8, 8, 3))

    result = paceline.train(
        Experiment(replicas=1, model=paceline.Model(depth=8)),
        data=build,
        steps=1,
        global_batch_size=8,
        progress=False,
    )
    assert result.run_dir.startswith("runs/build-resnet8-")
    assert result_of(Path(result.run_dir))["finished"]


def test_a_verb_stays_a_function_when_a_folder_has_its_name() -> None:
    import paceline.run_folder.folder

    assert all(inspect.isfunction(getattr(paceline, name)) for name in VERBS.split())
    assert "smoke" in paceline.recipes()


def test_help_is_complete() -> None:
    for name in VERBS.split():
        verb = getattr(paceline, name)
        described = verb.__doc__ + (paceline.train.__doc__ if name == "search" else "")
        for argument in inspect.signature(verb).parameters:
            assert f"        {argument}:" in described.replace("**", ""), (name, argument)
        assert "    Example:\n" in verb.__doc__, name
