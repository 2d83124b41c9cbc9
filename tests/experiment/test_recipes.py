"""Recipes: every one builds, keeps its settings, and trains."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from paceline.engines.collective import CollectiveEngine
from paceline.errors import UserError
from paceline.experiment.experiment import Augmentation, Experiment
from paceline.experiment.plan import build_plan
from paceline.experiment.recipes.table import RECIPES, get_recipe, recipes
from paceline.experiment.schedule import learning_rate, warmup_steps
from paceline.models.fine_tuning import with_own_scaling
from tiny import build_source, build_tiny_core

ALL = list(RECIPES)


def test_every_recipe_says_what_it_is():
    assert all(20 < len(text) < 250 for text in recipes().values())


def test_an_unknown_recipe_is_a_clear_error_with_the_nearest_name():
    with pytest.raises(
        UserError, match=r"unknown recipe 'cifar10-fasd'; did you mean 'cifar10-fast'\?"
    ):
        get_recipe("cifar10-fasd")


def with_marks(name):
    """Graphs of deep models take long to build."""
    return pytest.param(name, marks=pytest.mark.long if get_recipe(name).model.depth >= 50 else ())


@pytest.mark.slow
@pytest.mark.parametrize("name", [with_marks(name) for name in ALL])
def test_a_recipe_trains_two_steps(name):
    """On a handful of noise images, two for each replica; the model is the recipe's own."""
    recipe = get_recipe(name)
    data = replace(recipe.data, image_size=min(32, recipe.data.image_size))
    experiment = replace(recipe, data=data, global_batch_size=2 * recipe.replicas, steps=2)
    source = build_source(train=4 * recipe.replicas, test=3, shape=(32, 32, 3))
    core = build_tiny_core(with_own_scaling(experiment), source=source)
    engine = CollectiveEngine(core, tf.distribute.OneDeviceStrategy("/cpu:0"), 2)
    engine.load(core.initial_state())
    block = engine.advance(0, 2)
    before, after = core.initial_state().vectors, engine.state().vectors
    most = 1e6 if recipe.model.freeze else 100  # here, frozen weights are random and not scaled
    assert all(math.isfinite(loss) and 0 < loss < most for loss in block.losses)
    assert block.num_steps == 2
    for vector in ("params", "momentum", "stats"):
        assert np.isfinite(after[vector]).all()
        moved = (after[vector] != before[vector]).mean()
        assert moved == 0 if vector == "stats" and recipe.model.freeze else moved > 0.5


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_the_papers_recipes_have_the_papers_settings(depth):
    """He et al. 2015, section 4.2: batch 128, decay 1e-4, momentum 0.9, rate 0.1 divided by 10 at
    32,000 and 48,000 of 64,000 steps, 4 pixels of padding, crop and flip; for 110 layers a warm-up
    with 0.01."""
    recipe = get_recipe(f"cifar10-resnet{depth}")
    plan = build_plan(recipe, 50_000)
    assert (recipe.model.depth, recipe.model.version, recipe.model.block) == (depth, "v1", "basic")
    assert (recipe.optimizer.weight_decay, recipe.optimizer.momentum) == (1e-4, 0.9)
    assert (recipe.global_batch_size, recipe.data.source) == (128, "cifar10")
    assert recipe.augment == Augmentation(padding=4, flip=True)
    assert abs(plan.total_steps - 64_000) < 100

    def rate(step):
        return learning_rate(recipe.schedule, step, plan, 128)

    drops = [step for step in range(1_000, plan.total_steps) if rate(step) < 0.5 * rate(step - 1)]
    assert len(drops) == 2
    assert abs(drops[0] - 32_000) < 100
    assert abs(drops[1] - 48_000) < 100
    assert (rate(1_000), rate(plan.total_steps - 1)) == pytest.approx((0.1, 0.001))
    assert (rate(0) < 0.011) == (depth == 110)


DIGESTS = {
    "shapes": "77cc10b9",
    "smoke": "d08e55db",
    "cifar10-fast": "210bc2fc",
    "cifar10-resnet56-fast": "58497dbd",
    "cifar10-speedrun": "69da4d84",
    "cifar10-resnet20": "4285ea16",
    "cifar10-resnet32": "29a9cb4d",
    "cifar10-resnet44": "1644e050",
    "cifar10-resnet56": "62df7867",
    "cifar10-resnet110": "6d47d0c8",
    "ray-resnet32": "0483faa2",
    "estimator-resnet44": "fbfec92a",
    "official-resnet56": "ef2e5ee1",
    "imagenet-resnet50": "846f8821",
    "uai-resnet50": "09b321df",
    "my-images": "06c723e1",
    "finetune": "ee62e773",
}
"""Of every recipe. A new one means that the recipe trains something else."""


@pytest.mark.parametrize(
    ("name", "epochs"), [("shapes", 1.5), ("cifar10-fast", 8), ("my-images", 5), ("finetune", 1)]
)
def test_the_warm_up_of_a_recipe_scales_with_the_training(name, epochs):
    recipe = get_recipe(name)
    for size in (1_000, 12_345, 50_000):
        plan, short = build_plan(recipe, size), build_plan(replace(recipe, steps=12), size)
        steps = [
            warmup_steps(recipe.schedule, each.steps_per_epoch, each.total_steps)
            for each in (plan, short)
        ]
        assert steps == [round(epochs * plan.steps_per_epoch), round(12 * epochs / recipe.epochs)]


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_stays_the_same_and_survives_json(name):
    experiment = get_recipe(name)
    again = Experiment.from_json(json.loads(json.dumps(experiment.to_json())))
    assert again == experiment
    assert again.digest() == experiment.digest() == DIGESTS[name]


def test_rays_boundaries_fall_on_the_steps_it_computed_for_two_actors():
    """int(20000 * i / sqrt(2)) for i = 2, 3, 4."""
    recipe = get_recipe("ray-resnet32")
    plan = build_plan(recipe, 50_000)
    assert plan.round_steps == 10
    steps = range(1, plan.total_steps)
    rates = [learning_rate(recipe.schedule, step, plan, 256) for step in range(plan.total_steps)]
    assert [step for step in steps if rates[step] != rates[step - 1]] == [28_284, 42_426, 56_568]
    assert sorted(set(rates)) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
