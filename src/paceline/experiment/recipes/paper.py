"""Recipes for CIFAR-10 as papers and well-known examples train it. Each docstring says what it is,
its command, and what was reported."""

from __future__ import annotations

from dataclasses import replace

from paceline.experiment.experiment import (
    Augmentation,
    Data,
    Experiment,
    Model,
    Optimizer,
    Scaling,
    Schedule,
    Sync,
)

_CIFAR10 = Data(source="cifar10")
_AUGMENT = Augmentation(padding=4, flip=True)


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
    usual = _he_2015(110)
    return replace(usual, schedule=replace(usual.schedule, warmup=1.0, warmup_from=0.1))


def _he_2015(depth: int) -> Experiment:
    return Experiment(
        data=_CIFAR10,
        augment=_AUGMENT,
        model=Model(depth=depth),
        schedule=Schedule(rate=0.1, boundaries=(82, 123), factors=(0.1, 0.01)),
        epochs=164,
    )


def ray_resnet32() -> Experiment:
    """The ResNet example of Ray (2017): pre-activation ResNet-32, weights averaged every 10 steps,
    two actors with 128 examples each.

    Corrected: every actor has its own slice of a shuffled epoch, training images are augmented,
    all 10,000 test images count, CIFAR-100's pixels begin at the right byte, BatchNorm's
    statistics and momentum are averaged too.

    paceline train ray-resnet32 --data.dir DIR
    """
    steps_per_epoch = 50_000 // 256
    return Experiment(
        data=_CIFAR10,
        augment=replace(_AUGMENT, padding=2),
        scaling=Scaling("standardize"),
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

    Corrected: 45,000 training and 5,000 validation images as its text says (its code wrote 40,000
    and 10,000, so every boundary came late), ten classes instead of eleven, BatchNorm's statistics
    of all replicas instead of the first tower.

    paceline train estimator-resnet44 --data.dir DIR
    """
    return Experiment(
        data=replace(_CIFAR10, validation=5_000),
        augment=_AUGMENT,
        scaling=Scaling("unit"),
        model=Model(depth=44, shortcut="A-pool", norm_momentum=0.997, initializer="glorot_uniform"),
        optimizer=Optimizer(weight_decay=2e-4, decay="all"),
        schedule=Schedule(boundaries=(82, 123, 300), factors=(0.1, 0.01, 0.002)),
        steps=80_000,
    )


def official_resnet56() -> Experiment:
    """ResNet-56 of TensorFlow's official models (2019), as TensorFlowOnSpark ran it: projections in
    every stage, 182 epochs.

    Its l2(2e-4) has the gradient 4e-4 w, which is our weight decay. Corrected: all 10,000 test
    images count (it dropped 16), workers share one model (its command trained two separate ones),
    checkpoints are written.

    paceline train official-resnet56 --data.dir DIR
    """
    return Experiment(
        data=_CIFAR10,
        augment=_AUGMENT,
        scaling=Scaling("standardize"),
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
