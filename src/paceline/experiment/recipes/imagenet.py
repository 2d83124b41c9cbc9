"""Recipes for ImageNet in TFRecords. Each docstring says what it is, its command, and what others
measured."""

from __future__ import annotations

from paceline.experiment.experiment import (
    Augmentation,
    Data,
    Experiment,
    Model,
    Optimizer,
    Scaling,
    Schedule,
)

IMAGENET_SCALING = Scaling(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
_IMAGENET = Data(source="tfrecord", image_size=224)


def imagenet_resnet50() -> Experiment:
    """ResNet-50 v1.5 on ImageNet: warm-up of 5 epochs, a tenth of the rate at epochs 30, 60 and 80,
    90 epochs; others report 0.76.

    Not trained to its end by us: it needs GPUs. `--loss.label-smoothing 0.1` is often used with it,
    `--model.depth 101` works.

    paceline train imagenet-resnet50 --data.dir DIR --records.first-label 1
    """
    return Experiment(
        data=_IMAGENET,
        augment=Augmentation(flip=True),
        scaling=IMAGENET_SCALING,
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

    Corrected: BatchNorm's moving statistics are updated (they never were, so it evaluated with mean
    0 and variance 1), workers share out the data, and a cluster of a master and a worker trains on
    both. Its 1001st output, which no label uses, is left out. Not trained to its end by us.

    paceline train uai-resnet50 --data.dir DIR --records.first-label 1
    """
    return Experiment(
        data=_IMAGENET,
        augment=Augmentation(flip=True, crop="short-side"),
        scaling=Scaling(mean=(123.68, 116.78, 103.94), std=(255.0, 255.0, 255.0)),
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
