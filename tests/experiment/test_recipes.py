"""Recipes: every one builds, is its own experiment, and trains; those of the seed systems have
their constants."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from paceline.engines.collective import CollectiveEngine
from paceline.errors import UserError
from paceline.experiment.plan import build_plan
from paceline.experiment.recipes.table import RECIPES, describe_recipes, get_recipe
from paceline.experiment.schedule import learning_rate
from paceline.models.applications import with_own_scaling
from tiny import build_source, build_tiny_core

ALL = list(RECIPES)


def test_recipes_are_different_experiments():
    assert len({get_recipe(name).digest() for name in ALL}) == len(ALL)


def test_every_recipe_says_what_it_is():
    assert all(20 < len(text) < 250 for text in describe_recipes().values())


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
    data = (
        dataclasses.replace(recipe.data, image_size=32) if recipe.data.image_size else recipe.data
    )
    experiment = dataclasses.replace(
        recipe, data=data, global_batch_size=2 * recipe.replicas, steps=2
    )
    core = build_tiny_core(
        with_own_scaling(experiment),
        source=build_source(train=4 * recipe.replicas, test=3, shape=(32, 32, 3)),
    )
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


def test_smoke_has_what_tests_need():
    smoke = get_recipe("smoke")
    plan = build_plan(smoke, smoke.data.train_size)
    saves = [step for step in range(1, plan.total_steps + 1) if plan.saves_at(step)]
    assert smoke.replicas == 4
    assert len(saves) >= 5
    assert smoke.data.test_size % 2 == 1


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_the_papers_recipes_have_the_papers_settings(depth):
    """He et al. 2015, section 4.2: batch 128, decay 1e-4, momentum 0.9, rate 0.1 divided by 10 at
    32,000 and 48,000 of 64,000 steps, 4 pixels of padding, crop and flip; for 110 layers a warm-up
    with 0.01."""
    recipe = get_recipe(f"cifar10-resnet{depth}")
    plan = build_plan(recipe, 50_000)
    assert (recipe.model.depth, recipe.model.version, recipe.model.block) == (depth, "v1", "basic")
    assert (recipe.global_batch_size, recipe.optimizer.weight_decay, recipe.optimizer.momentum) == (
        128,
        1e-4,
        0.9,
    )
    assert (
        recipe.data.source,
        recipe.augment.padding,
        recipe.augment.flip,
        recipe.augment.cutout,
        recipe.augment.mixup,
    ) == ("cifar10", 4, True, 0, 0)
    assert abs(plan.total_steps - 64_000) < 100

    def rate(step):
        return learning_rate(recipe.schedule, step, plan.steps_per_epoch, plan.total_steps, 128)

    drops = [step for step in range(1_000, plan.total_steps) if rate(step) < 0.5 * rate(step - 1)]
    assert len(drops) == 2
    assert abs(drops[0] - 32_000) < 100
    assert abs(drops[1] - 48_000) < 100
    assert (rate(1_000), rate(plan.total_steps - 1)) == pytest.approx((0.1, 0.001))
    assert (rate(0) < 0.011) == (depth == 110)


SEED_SYSTEMS = {
    "ray-resnet32": {
        "model.depth": 32,
        "model.version": "v2",
        "model.block": "basic",
        "model.shortcut": "A-pool",
        "model.leakiness": 0.1,
        "model.norm_momentum": 0.9,
        "model.norm_epsilon": 1e-3,
        "model.initializer": "he_fan_out",
        "data.source": "cifar10",
        "augment.padding": 2,
        "augment.flip": True,
        "scaling.method": "standardize",
        "data.validation": 0,
        "optimizer.name": "sgd",
        "optimizer.momentum": 0.9,
        "optimizer.nesterov": False,
        "optimizer.weight_decay": 2e-4,
        "optimizer.decay": "kernels",
        "schedule.rate": 0.1,
        "schedule.factors": (0.1, 0.01, 0.001),
        "schedule.warmup": 0,
        "schedule.scale_to_batch": 0,
        "sync.method": "weights",
        "sync.every": 10,
        "replica_batch_size": 128,
    },
    "estimator-resnet44": {
        "model.depth": 44,
        "model.version": "v1",
        "model.block": "basic",
        "model.shortcut": "A-pool",
        "model.leakiness": 0,
        "model.norm_momentum": 0.997,
        "model.norm_epsilon": 1e-5,
        "model.initializer": "glorot_uniform",
        "data.source": "cifar10",
        "augment.padding": 4,
        "augment.flip": True,
        "scaling.method": "unit",
        "data.validation": 5_000,
        "optimizer.name": "sgd",
        "optimizer.momentum": 0.9,
        "optimizer.nesterov": False,
        "optimizer.weight_decay": 2e-4,
        "optimizer.decay": "all",
        "schedule.rate": 0.1,
        "schedule.boundaries": (82, 123, 300),
        "schedule.factors": (0.1, 0.01, 0.002),
        "schedule.warmup": 0,
        "schedule.scale_to_batch": 0,
        "sync.method": "gradients",
        "global_batch_size": 128,
        "steps": 80_000,
    },
    "official-resnet56": {
        "model.depth": 56,
        "model.version": "v1",
        "model.block": "basic",
        "model.shortcut": "B-first",
        "model.leakiness": 0,
        "model.norm_momentum": 0.997,
        "model.norm_epsilon": 1e-5,
        "model.initializer": "he_normal",
        "data.source": "cifar10",
        "augment.padding": 4,
        "augment.flip": True,
        "scaling.method": "standardize",
        "data.validation": 0,
        "optimizer.name": "sgd",
        "optimizer.momentum": 0.9,
        "optimizer.nesterov": False,
        "optimizer.weight_decay": 2 * 2e-4,  # the gradient of l2(2e-4) is 4e-4 w
        "optimizer.decay": "kernels-and-bias",
        "schedule.rate": 0.1,
        "schedule.boundaries": (91, 136, 182),
        "schedule.factors": (0.1, 0.01, 0.001),
        "schedule.warmup": 0,
        "schedule.scale_to_batch": 128,
        "sync.method": "gradients",
        "global_batch_size": 128,
        "epochs": 182,
        "evaluate_every": 10,
    },
}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [(n, f, v) for n, table in SEED_SYSTEMS.items() for f, v in table.items()],
)
def test_the_seed_systems_constants_are_kept(name, field, value):
    found = get_recipe(name)
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


def test_rays_boundaries_fall_on_the_steps_it_computed_for_two_actors():
    """int(20000 * i / sqrt(2)) for i = 2, 3, 4."""
    recipe = get_recipe("ray-resnet32")
    plan = build_plan(recipe, 50_000)
    assert plan.round_steps == 10
    steps = range(1, plan.total_steps)
    rates = [
        learning_rate(recipe.schedule, step, plan.steps_per_epoch, plan.total_steps, 256)
        for step in range(plan.total_steps)
    ]
    assert [step for step in steps if rates[step] != rates[step - 1]] == [28_284, 42_426, 56_568]
    assert sorted(set(rates)) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])


def test_the_estimators_boundaries_count_epochs_of_45_000_examples():
    recipe = get_recipe("estimator-resnet44")
    plan = build_plan(recipe, 50_000 - recipe.data.validation)
    assert plan.steps_per_epoch == 45_000 // 128
    assert plan.total_steps == 80_000


def test_a_flag_that_repeats_the_recipes_own_number_names_the_same_run():
    """The command line makes floats of what recipes write as whole numbers."""
    recipe = get_recipe("cifar10-resnet20")
    assert dataclasses.replace(recipe, epochs=float(recipe.epochs)).digest() == recipe.digest()
