"""Recipes for CIFAR-10: in little time, and as papers and well-known examples train it.

Each docstring says what it is, and what was measured or reported.
"""

from collections.abc import Callable
from dataclasses import replace

from paceline.experiment.data import Augmentation, Data, Scaling
from paceline.experiment.experiment import Experiment
from paceline.experiment.model import Model
from paceline.experiment.optimizer import Group, Loss, Optimizer, Schedule, Sync

_CIFAR10 = Data(source="cifar10")
_AUGMENT = Augmentation(padding=4, flip=True)
_REFLECTED = replace(_AUGMENT, padding_mode="reflect", alternate_flip=True)


def cifar10_fast() -> Experiment:
    """ResNet-20 on CIFAR-10 in 40 one-cycle epochs: 0.9189 (the paper: 0.9125 after 164)."""
    return Experiment(
        data=_CIFAR10,
        augment=_REFLECTED,
        model=Model(depth=20, shortcut="A-pool"),
        loss=Loss(label_smoothing=0.05),
        optimizer=Optimizer(nesterov=True, weight_decay=5e-4),
        schedule=Schedule(name="one-cycle", rate=0.2, warmup="1/5", warmup_from=0.1),
        epochs=40,
        evaluate_every=5.0,
    )


def cifar10_resnet56_fast() -> Experiment:
    """ResNet-56 on CIFAR-10 in 40 one-cycle epochs: 0.9311 (the paper: 0.9303 after 164)."""
    fast = cifar10_fast()
    return replace(fast, model=replace(fast.model, depth=56), loss=Loss(label_smoothing=0.1))


_SPEEDRUN_GROUPS = (
    Group("whiten_conv/kernel", rate=0),
    Group("whiten_conv/bias", rate=53, decay=3.8e-5, until=0.125),
    Group("head_dense/kernel", rate=670, decay=3e-6),
    Group("*/kernel", rule="muon", rate=0.18, momentum=0.7),
    Group("*/beta", rate=53, decay=3.8e-5),
)


def cifar10_speedrun() -> Experiment:
    """A network for short runs on CIFAR-10 in 11 epochs, after airbench94 with Muon (Jordan 2024):
    0.9428 with `--views shifts`, 0.9348 without, in 13 minutes on 2 vCPUs.

    The first convolution whitens patches and is not trained. Filters are trained with Muon, all
    other weights with Nesterov's momentum. The first quarter of training uses images of 20 pixels.
    Crops have 33 pixels: then the kernels compute maps of 32, 16, 8 and 4 pixels without waste."""
    return Experiment(
        data=_CIFAR10,
        augment=replace(
            _REFLECTED,
            padding=2,
            crop_size=33,
            sizes=(20,),
            size_epochs=(2.75,),
            brightness=0.14,
            contrast=0.13,
        ),
        model=Model(
            layout="speedrun",
            norm_momentum=0.6,
            norm_epsilon=1e-12,
            norm_scale=False,
            activation="gelu",
            initializer="identity",
            whitening=5_000,
        ),
        loss=Loss(label_smoothing=0.2),
        optimizer=Optimizer(
            momentum=0.85, nesterov=True, weight_decay=0.0, groups=_SPEEDRUN_GROUPS
        ),
        schedule=Schedule(name="one-cycle", rate=1.0),
        global_batch_size=1_000,
        epochs=11,
        evaluate_every=4.0,
        save_every=2.0,
    )


def _he_2015(depth: int, reported: str, warmup: float = 0.0) -> Callable[[], Experiment]:
    steps = Schedule(rate=0.1, boundaries=(82, 123), factors=(0.1, 0.01))

    def recipe() -> Experiment:
        return Experiment(
            data=_CIFAR10,
            augment=_AUGMENT,
            model=Model(depth=depth),
            schedule=replace(steps, warmup=warmup, warmup_from=0.1) if warmup else steps,
            epochs=164,
        )

    end = f"164 epochs{', with a warm-up' if warmup else ''}; the paper reports {reported}."
    recipe.__doc__ = f"ResNet-{depth} on CIFAR-10 as in He et al. 2015, {end}"
    return recipe


cifar10_resnet20 = _he_2015(20, "0.9125")
cifar10_resnet32 = _he_2015(32, "0.9249")
cifar10_resnet44 = _he_2015(44, "0.9283")
cifar10_resnet56 = _he_2015(56, "0.9303")
cifar10_resnet110 = _he_2015(110, "0.9357", warmup=1.0)


def ray_resnet32() -> Experiment:
    """The ResNet example of Ray (2017): pre-activation ResNet-32, weights averaged every 10 steps,
    two actors with 128 examples each."""
    steps_per_epoch = 50_000 // 256
    return Experiment(
        data=_CIFAR10,
        augment=replace(_AUGMENT, padding=2),
        scaling=Scaling("standardize"),
        model=Model(depth=32, version="v2", shortcut="A-pool", norm_epsilon=1e-3, leakiness=0.1),
        optimizer=Optimizer(weight_decay=2e-4),
        schedule=Schedule(
            boundaries=tuple(int(20_000 * i / 2**0.5) / steps_per_epoch for i in (2, 3, 4)),
            factors=(0.1, 0.01, 0.001),
        ),
        sync=Sync(method="weights", every=10),
        global_batch_size=256,
        steps=60_000,
    )


def estimator_resnet44() -> Experiment:
    """The CIFAR-10 guide of TensorFlow's Estimators (2017): ResNet-44, pixels scaled to x/128-1,
    weight decay on all variables, 80,000 steps."""
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
    every stage, 182 epochs."""
    return Experiment(
        data=_CIFAR10,
        augment=_AUGMENT,
        scaling=Scaling("standardize"),
        model=Model(depth=56, shortcut="B-first", norm_momentum=0.997, initializer="he_normal"),
        optimizer=Optimizer(weight_decay=4e-4, decay="kernels-and-bias"),
        schedule=Schedule(
            boundaries=(91, 136, 182), factors=(0.1, 0.01, 0.001), scale_to_batch=128
        ),
        epochs=182,
        evaluate_every=10.0,
    )
