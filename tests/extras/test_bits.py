"""No recipe has an operation of TensorFlow that rounds, after the graph optimizer."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import paceline
from image_folders import write_images
from in_process import workers_here
from paceline.experiment.data import Data
from paceline.experiment.experiment import Experiment
from paceline.experiment.recipes.table import RECIPES, get_recipe
from paceline.extras.bits import own_and_other_operations
from paceline.job import Job


def operations(experiment: Experiment) -> tuple[Counter[str], Counter[str]]:
    with workers_here():
        return own_and_other_operations(Job(experiment))


def small(name: str, folder: Path) -> Experiment:
    """A recipe with small batches of generated images, and ResNet-8 for the deep ones: with the
    same operations."""
    recipe = get_recipe(name)
    data, model = Data(source="shapes", train_size=64, test_size=10), recipe.model
    if recipe.data.image_size:
        data = replace(recipe.data, source="auto", dir=str(write_images(folder)), image_size=64)
    elif model.depth > 8:
        model = replace(model, depth=8)
    return replace(recipe, data=data, model=model, global_batch_size=8, replicas=2)


QUICK = ("smoke",)
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in RECIPES if name not in QUICK]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_tensorflow_rounds_nothing_in_any_recipe(name: str, tmp_path: Path) -> None:
    own, other = operations(small(name, tmp_path))
    assert not other
    assert own["PacelineConv"]
    assert own["PacelineBinary"]


@pytest.mark.slow
def test_what_tensorflow_computes_is_named(tmp_path: Path) -> None:
    recipe = replace(small("smoke", tmp_path), kernels="tensorflow")
    _, other = operations(recipe)
    assert {"Conv2DBackpropFilter", "FusedBatchNormV3"} & {name.lstrip("_") for name in other}


@pytest.mark.slow
def test_doctor_prints_what_decides_the_bits_of_a_recipe(tmp_path: Path) -> None:
    ended = paceline("doctor", "--bits", "smoke", cwd=tmp_path)
    assert ended.code == 0, ended
    assert "PacelineConv3x3 x " in ended.out
    assert ended.out.endswith("bits: any CPU: TensorFlow only moves and compares numbers\n")
