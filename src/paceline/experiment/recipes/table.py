"""Recipes: named experiments. Each docstring says what it is, its command, and what was
measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

from paceline.errors import UserError, did_you_mean
from paceline.experiment.experiment import Data, Experiment, Model, Optimizer, Schedule, Sync
from paceline.experiment.recipes.fast import cifar10_fast, cifar10_resnet56_fast, cifar10_speedrun
from paceline.experiment.recipes.own_images import finetune

_CIFAR10 = Data(source="cifar10", padding=4, flip=True)
_IMAGENET = Data(
    source="tfrecord",
    image_size=224,
    flip=True,
    mean=(123.675, 116.28, 103.53),
    std=(58.395, 57.12, 57.375),
)


def shapes() -> Experiment:
    """Ten kinds of shapes, drawn by the program: nothing to download. ResNet-8, 0.9802 on 4,000
    test images.

    paceline train
    """
    return Experiment(
        data=Data(source="shapes", padding=2, flip=True, mean=(127.6,) * 3, std=(74.5,) * 3),
        model=Model(depth=8),
        optimizer=Optimizer(nesterov=True, weight_decay=5e-4),
        schedule=Schedule(name="one-cycle", rate=0.2, warmup=1.5),
        epochs=6,
    )


def smoke() -> Experiment:
    """A few seconds of everything, for tests: 4 replicas, several saves, a test set of odd size.

    paceline train smoke
    """
    return Experiment(
        data=Data(source="shapes", train_size=272, test_size=131, padding=2, flip=True),
        model=Model(depth=8, width=4),
        optimizer=Optimizer(nesterov=True),
        schedule=Schedule(name="cosine", rate=0.05, warmup=0.5),
        global_batch_size=32,
        replicas=4,
        epochs=3,
        save_every=0.5,
    )


def cifar10_resnet20() -> Experiment:
    """ResNet-20 on CIFAR-10 as in He et al. 2015, section 4.2: 164 epochs, about 64,000 steps; the
    paper reports 0.9125.

    paceline train cifar10-resnet20 --data.dir DIR
    """
    return _he_2015(20)


def cifar10_resnet32() -> Experiment:
    """ResNet-32 on CIFAR-10 as in He et al. 2015; the paper reports 0.9249.

    paceline train cifar10-resnet32 --data.dir DIR
    """
    return _he_2015(32)


def cifar10_resnet44() -> Experiment:
    """ResNet-44 on CIFAR-10 as in He et al. 2015; the paper reports 0.9283.

    paceline train cifar10-resnet44 --data.dir DIR
    """
    return _he_2015(44)


def cifar10_resnet56() -> Experiment:
    """ResNet-56 on CIFAR-10 as in He et al. 2015; the paper reports 0.9303.

    paceline train cifar10-resnet56 --data.dir DIR
    """
    return _he_2015(56)


def cifar10_resnet110() -> Experiment:
    """ResNet-110 on CIFAR-10 as in He et al. 2015, with one epoch of warm-up from 0.01; the paper
    reports 0.9357.

    paceline train cifar10-resnet110 --data.dir DIR
    """
    return replace(
        _he_2015(110), schedule=replace(_he_2015(110).schedule, warmup=1.0, warmup_from=0.1)
    )


def _he_2015(depth: int) -> Experiment:
    return Experiment(
        data=_CIFAR10,
        model=Model(depth=depth),
        schedule=Schedule(rate=0.1, boundaries=(82, 123), factors=(0.1, 0.01)),
        epochs=164,
    )


def ray_resnet32() -> Experiment:
    """The ResNet example of Ray (2017): pre-activation ResNet-32, weights averaged every 10 steps,
    two actors with 128 examples each.

    Put right: every actor has its own slice of a shuffled epoch, training images are augmented,
    all 10,000 test images count, CIFAR-100's pixels begin at the right byte, BatchNorm's
    statistics and momentum are averaged too.

    paceline train ray-resnet32 --data.dir DIR
    """
    steps_per_epoch = 50_000 // 256
    return Experiment(
        data=replace(_CIFAR10, padding=2, scaling="standardise"),
        model=Model(depth=32, version="v2", shortcut="A-pool", norm_epsilon=1e-3, leakiness=0.1),
        optimizer=Optimizer(weight_decay=2e-4, decay="kernels"),
        schedule=Schedule(
            boundaries=tuple(int(20_000 * i / 2**0.5) / steps_per_epoch for i in (2, 3, 4)),
            factors=(0.1, 0.01, 0.001),
        ),
        sync=Sync(method="weights", every=10),
        global_batch_size=256,
        steps=60_000,
    )


def estimator_resnet44() -> Experiment:
    """The CIFAR-10 guide of TensorFlow's Estimators (2017): ResNet-44, x/128-1, decay on all
    variables, 80,000 steps.

    Put right: 45,000 training and 5,000 validation images as its text says (its code wrote 40,000
    and 10,000, so every boundary came late), ten classes instead of eleven, BatchNorm's statistics
    of all replicas instead of the first tower.

    paceline train estimator-resnet44 --data.dir DIR
    """
    return Experiment(
        data=replace(_CIFAR10, scaling="unit", validation=5_000),
        model=Model(depth=44, shortcut="A-pool", norm_momentum=0.997, initializer="glorot_uniform"),
        optimizer=Optimizer(weight_decay=2e-4, decay="all"),
        schedule=Schedule(boundaries=(82, 123, 300), factors=(0.1, 0.01, 0.002)),
        steps=80_000,
    )


def official_resnet56() -> Experiment:
    """ResNet-56 of TensorFlow's official models (2019), as TensorFlowOnSpark ran it: projections in
    every stage, 182 epochs.

    Its l2(2e-4) has the gradient 4e-4 w, which is our weight decay. Put right: all 10,000 test
    images count (it dropped 16), workers share one model (its command trained two lone ones),
    checkpoints are written.

    paceline train official-resnet56 --data.dir DIR
    """
    return Experiment(
        data=replace(_CIFAR10, scaling="standardise"),
        model=Model(
            depth=56,
            shortcut="B-first",
            norm_momentum=0.997,
            norm_epsilon=1e-5,
            initializer="he_normal",
        ),
        optimizer=Optimizer(weight_decay=4e-4, decay="kernels-and-bias"),
        schedule=Schedule(
            boundaries=(91, 136, 182), factors=(0.1, 0.01, 0.001), scale_to_batch=128
        ),
        epochs=182,
        evaluate_every=10.0,
    )


def imagenet_resnet50() -> Experiment:
    """ResNet-50 v1.5 on ImageNet: warm-up of 5 epochs, a tenth of the rate at epochs 30, 60 and 80,
    90 epochs; others report 0.76.

    Not trained to its end by us: it needs GPUs. `--optimizer.label-smoothing 0.1` is often used
    with it, `--model.depth 101` works.

    paceline train imagenet-resnet50 --data.dir DIR --data.first-label 1
    """
    return Experiment(
        data=_IMAGENET,
        model=Model(layout="imagenet", depth=50, version="v1.5"),
        optimizer=Optimizer(weight_decay=1e-4),
        schedule=Schedule(
            rate=0.1,
            scale_to_batch=256,
            warmup=5,
            boundaries=(30, 60, 80),
            factors=(0.1, 0.01, 0.001),
        ),
        global_batch_size=256,
        replicas=8,
        epochs=90,
    )


def uai_resnet50() -> Experiment:
    """The ImageNet example of UCloud's UAI platform (2019): pre-activation ResNet-50, short side
    256 to 512, 100 epochs.

    Put right: BatchNorm's moving statistics are updated (they never were, so it evaluated with mean
    0 and variance 1), workers share out the data, and a cluster of a master and a worker trains on
    both. Its 1001st output, which no label uses, is left out. Not trained to its end by us.

    paceline train uai-resnet50 --data.dir DIR --data.first-label 1
    """
    return Experiment(
        data=replace(
            _IMAGENET, crop="short-side", mean=(123.68, 116.78, 103.94), std=(255.0, 255.0, 255.0)
        ),
        model=Model(
            layout="imagenet",
            depth=50,
            version="v2",
            shortcut="B",
            norm_momentum=0.997,
            norm_epsilon=1e-5,
            initializer="lecun_normal",
        ),
        optimizer=Optimizer(weight_decay=1e-4, decay="all"),
        schedule=Schedule(rate=0.1, boundaries=(30, 60, 80, 90), factors=(0.1, 0.01, 1e-3, 1e-4)),
        global_batch_size=128,
        replicas=4,
        epochs=100,
    )


def my_images() -> Experiment:
    """A folder of your own images, converted or not: train/<class>/*.jpg and val/<class>/*.jpg,
    or one folder of classes.

    ResNet-18 at 128 pixels; `--data.split 0.1` holds a tenth of one folder out, `--model.init-from
    RUN` starts from earlier weights.

    paceline train my-images --data.dir DIR
    """
    return Experiment(
        data=replace(_IMAGENET, source="auto", image_size=128, crop_area_min=0.25),
        model=Model(layout="imagenet", depth=18),
        optimizer=Optimizer(nesterov=True, weight_decay=5e-4, label_smoothing=0.1),
        schedule=Schedule(name="one-cycle", rate=0.05, warmup=5),
        global_batch_size=32,
        epochs=30,
    )


RECIPES: dict[str, Callable[[], Experiment]] = {
    "shapes": shapes,
    "smoke": smoke,
    "cifar10-fast": cifar10_fast,
    "cifar10-resnet56-fast": cifar10_resnet56_fast,
    "cifar10-speedrun": cifar10_speedrun,
    "cifar10-resnet20": cifar10_resnet20,
    "cifar10-resnet32": cifar10_resnet32,
    "cifar10-resnet44": cifar10_resnet44,
    "cifar10-resnet56": cifar10_resnet56,
    "cifar10-resnet110": cifar10_resnet110,
    "ray-resnet32": ray_resnet32,
    "estimator-resnet44": estimator_resnet44,
    "official-resnet56": official_resnet56,
    "imagenet-resnet50": imagenet_resnet50,
    "uai-resnet50": uai_resnet50,
    "my-images": my_images,
    "finetune": finetune,
}


def get_recipe(name: str) -> Experiment:
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}; {did_you_mean(name, list(RECIPES))}")
    return RECIPES[name]()


def describe_recipes() -> dict[str, str]:
    """Return each recipe's name and the first paragraph of its docstring, on one line."""
    texts = {name: inspect.cleandoc(recipe.__doc__ or "") for name, recipe in RECIPES.items()}
    return {name: " ".join(text.split("\n\n")[0].split()) for name, text in texts.items()}
