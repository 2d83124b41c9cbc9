"""What an experiment builds: weights by its seed alone, a person's own model, clear errors."""

import hashlib
from dataclasses import replace

import keras
import numpy as np
import pytest

from paceline import build
from paceline.build import build_model
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Experiment, Model
from paceline.job import Job
from paceline.maths.template import build_template

SHAPE = (32, 32, 3)


def digest(model):
    return hashlib.sha256(build_template(model).initial()["params"].data).hexdigest()


def test_the_seed_alone_decides_the_first_weights():
    experiment = Experiment(model=Model(depth=8, width=4), seed=3)
    first = digest(build_model(experiment, SHAPE, 10))
    keras.layers.Dense(5).build((None, 5))
    assert digest(build_model(experiment, SHAPE, 10)) == first
    assert digest(build_model(replace(experiment, seed=4), SHAPE, 10)) != first


def own_model(tmp_path, text):
    (tmp_path / "own_model.py").write_text("import keras\n" + text)
    return Experiment(model=Model(build=f"{tmp_path / 'own_model.py'}:make"))


def test_a_persons_own_function_builds_the_model(tmp_path):
    text = (
        "def make(image_shape, num_classes):\n"
        "    layers = [keras.layers.Flatten(), keras.layers.Dense(num_classes)]\n"
        "    return keras.Sequential(layers)\n"
    )
    model = build_model(own_model(tmp_path, text), (4, 4, 3), 7)
    assert model.built
    assert model(np.zeros((2, 4, 4, 3), np.float32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def make(image_shape, num_classes):\n    return 3\n",
            "returned int; it must return a keras.Model",
        ),
        (
            "def make(image_shape, num_classes):\n"
            "    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])\n",
            r"gives outputs \(None, 3\); it must give \(None, 7\)",
        ),
    ],
)
def test_a_function_that_returns_something_else_is_a_clear_error(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        build_model(own_model(tmp_path, text), (4, 4, 3), 7)


@pytest.mark.parametrize(
    "own", [Model(width=4, shortcut="B"), Model(width=7, layout="imagenet", depth=18)]
)
def test_widths_at_which_onednn_writes_beyond_its_memory_are_refused(own):
    with pytest.raises(
        UserError,
        match=f"model.width is {own.width}; with projection shortcuts it must be 8 or more",
    ):
        build.build_core(Job(Experiment(model=own, data=Data(train_size=128, test_size=1))))
