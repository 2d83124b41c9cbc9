"""The table of recipes, and the two for images that the program draws."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import cast

from paceline.errors import UserError, did_you_mean
from paceline.experiment.data import Augmentation, Data, Scaling
from paceline.experiment.experiment import Experiment
from paceline.experiment.model import Model
from paceline.experiment.optimizer import Optimizer, Schedule

_MODULES = {
    "table": ("shapes", "smoke"),
    "cifar10": (
        *("cifar10-fast", "cifar10-resnet56-fast", "cifar10-speedrun", "cifar10-resnet20"),
        *("cifar10-resnet32", "cifar10-resnet44", "cifar10-resnet56", "cifar10-resnet110"),
        *("ray-resnet32", "estimator-resnet44", "official-resnet56"),
    ),
    "photos": ("imagenet-resnet50", "uai-resnet50", "my-images", "finetune"),
}
"""Module in this folder -> its recipes. The function of a recipe has its name."""
RECIPES = {name: module for module, names in _MODULES.items() for name in names}


SMALL_IMAGES = "paceline.formats.small_images"
"""Looks at the folder of my-images."""


def get_recipe(name: str, data_dir: str = "") -> Experiment:
    """Return the experiment of that name. That of my-images depends on the images in `data_dir`."""
    if name not in RECIPES:
        near = [each for each in RECIPES if name and each.endswith(f"-{name}")]
        hint = f"there are {', '.join(near)}" if len(near) > 1 else did_you_mean(name, RECIPES)
        own = "; for your own images: finetune, my-images" if near else ""
        raise UserError(f"unknown recipe {name!r}; {hint}{own}")
    if name == "my-images" and data_dir:
        return cast("Experiment", import_module(SMALL_IMAGES).recipe_for(data_dir))
    return _function(name)()


def recipes() -> dict[str, str]:
    """Return the name of each recipe and what it is: the first paragraph of its docstring."""
    texts = {name: inspect.cleandoc(_function(name).__doc__ or "") for name in RECIPES}
    return {name: " ".join(text.split("\n\n")[0].split()) for name, text in texts.items()}


def _function(name: str) -> Callable[[], Experiment]:
    module = import_module(f"paceline.experiment.recipes.{RECIPES[name]}")
    return cast("Callable[[], Experiment]", getattr(module, name.replace("-", "_")))


def shapes() -> Experiment:
    """Ten kinds of drawn shapes: nothing to download. ResNet-8; accuracy 0.936 to 0.970."""
    return Experiment(
        data=Data(source="shapes"),
        augment=Augmentation(padding=2, flip=True),
        scaling=Scaling(mean=(127.6,) * 3, std=(74.5,) * 3),
        model=Model(depth=8),
        optimizer=Optimizer(nesterov=True, weight_decay=5e-4),
        schedule=Schedule(name="one-cycle", rate=0.2, warmup="1/4"),
        epochs=6,
    )


def smoke() -> Experiment:
    """A run of a few seconds for tests: 4 replicas, several checkpoints, a test set of odd size."""
    return Experiment(
        data=Data(source="shapes", train_size=272, test_size=131),
        augment=Augmentation(padding=2, flip=True),
        model=Model(depth=8, width=4),
        optimizer=Optimizer(nesterov=True),
        schedule=Schedule(name="cosine", rate=0.05, warmup=0.5),
        global_batch_size=32,
        replicas=4,
        epochs=3,
        save_every=0.5,
    )
