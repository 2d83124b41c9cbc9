"""Recipes for a folder of your own images."""

from __future__ import annotations

from paceline.experiment.experiment import (
    Augmentation,
    Data,
    Experiment,
    Loss,
    Model,
    Optimizer,
    Scaling,
    Schedule,
)
from paceline.experiment.recipes.imagenet import IMAGENET_SCALING

_AUGMENT = Augmentation(flip=True, crop_area_min=0.25)


def my_images() -> Experiment:
    """A folder of your own images, converted or not: train/<class>/*.jpg and val/<class>/*.jpg,
    or one folder of classes.

    ResNet-18 at 128 pixels; `--data.split 0.1` holds a tenth of one folder out, `--model.init-from
    RUN` starts from earlier weights.

    paceline train my-images --data.dir DIR
    """
    return Experiment(
        data=Data(source="auto", image_size=128),
        augment=_AUGMENT,
        scaling=IMAGENET_SCALING,
        model=Model(layout="imagenet", depth=18),
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(nesterov=True, weight_decay=5e-4),
        schedule=Schedule(name="one-cycle", rate=0.05, warmup=5),
        global_batch_size=32,
        epochs=30,
    )


def finetune() -> Experiment:
    """A folder of your own images and a network that knows ImageNet: a new last layer on Keras's
    ResNet-50, whose other layers stay as they are.

    `--model.init-from keras:EfficientNetV2B0` takes another of keras.applications, `--model.freeze
    ..conv4` also trains the last stage. docs/fine-tuning.md has more.

    paceline train finetune --data.dir DIR
    """
    return Experiment(
        data=Data(source="auto", image_size=224),
        augment=_AUGMENT,
        scaling=Scaling("application"),
        model=Model(depth=50, layout="imagenet", init_from="keras:ResNet50", freeze=("backbone",)),
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(nesterov=True, weight_decay=1e-4),
        schedule=Schedule(name="one-cycle", rate=0.1, warmup=1),
        global_batch_size=32,
        epochs=5,
    )
