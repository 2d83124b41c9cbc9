"""Recipes: named experiments, in one table."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from paceline.errors import UserError, did_you_mean
from paceline.experiment.experiment import Experiment
from paceline.experiment.recipes import fast, generated, imagenet, own_images, paper

RECIPES: dict[str, Callable[[], Experiment]] = {
    "shapes": generated.shapes,
    "smoke": generated.smoke,
    "cifar10-fast": fast.cifar10_fast,
    "cifar10-resnet56-fast": fast.cifar10_resnet56_fast,
    "cifar10-speedrun": fast.cifar10_speedrun,
    "cifar10-resnet20": paper.cifar10_resnet20,
    "cifar10-resnet32": paper.cifar10_resnet32,
    "cifar10-resnet44": paper.cifar10_resnet44,
    "cifar10-resnet56": paper.cifar10_resnet56,
    "cifar10-resnet110": paper.cifar10_resnet110,
    "ray-resnet32": paper.ray_resnet32,
    "estimator-resnet44": paper.estimator_resnet44,
    "official-resnet56": paper.official_resnet56,
    "imagenet-resnet50": imagenet.imagenet_resnet50,
    "uai-resnet50": imagenet.uai_resnet50,
    "my-images": own_images.my_images,
    "finetune": own_images.finetune,
}


def get_recipe(name: str) -> Experiment:
    """Return the experiment of that name."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; {did_you_mean(name, list(RECIPES))}")
    return RECIPES[name]()


def describe_recipes() -> dict[str, str]:
    """Return each recipe's name and the first paragraph of its docstring, on one line."""
    texts = {name: inspect.cleandoc(recipe.__doc__ or "") for name, recipe in RECIPES.items()}
    return {name: " ".join(text.split("\n\n")[0].split()) for name, text in texts.items()}
