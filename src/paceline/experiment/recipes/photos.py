"""Recipes for photos: ImageNet in TFRecords, and a folder of your own images."""

from paceline.experiment.data import Augmentation, Data, Scaling
from paceline.experiment.experiment import Experiment
from paceline.experiment.model import Model
from paceline.experiment.optimizer import Loss, Optimizer, Schedule

_SCALING = Scaling(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
_IMAGENET = Data(source="tfrecord", image_size=224)
_CROPS = Augmentation(flip=True, crop_area_min=0.25)


def imagenet_resnet50() -> Experiment:
    """ResNet-50 v1.5 on ImageNet: 90 epochs, warm-up of 5 epochs, rate divided by 10 at epochs 30,
    60 and 80; others report 0.76.

    Nobody has trained it to the end yet. `--model.depth 101` trains ResNet-101."""
    return Experiment(
        data=_IMAGENET,
        augment=Augmentation(flip=True),
        scaling=_SCALING,
        model=Model(layout="imagenet", depth=50, version="v1.5"),
        schedule=Schedule(
            scale_to_batch=256, warmup=5, boundaries=(30, 60, 80), factors=(0.1, 0.01, 0.001)
        ),
        global_batch_size=256,
        replicas=8,
        epochs=90,
    )


def uai_resnet50() -> Experiment:
    """The ImageNet example of UCloud's UAI platform (2019): pre-activation ResNet-50, short side
    256 to 512, 100 epochs."""
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
            initializer="lecun_normal",
        ),
        optimizer=Optimizer(decay="all"),
        schedule=Schedule(boundaries=(30, 60, 80, 90), factors=(0.1, 0.01, 1e-3, 1e-4)),
        global_batch_size=128,
        replicas=4,
        epochs=100,
    )


def my_images() -> Experiment:
    """A folder of your own images, converted or not: train/<class>/*.jpg and val/<class>/*.jpg,
    or one folder of classes.

    ResNet-18 at 128 pixels. `--data.split 0.1` uses a tenth of one folder for testing.
    `--model.init-from RUN` starts from earlier weights."""
    return Experiment(
        data=Data(source="auto", image_size=128),
        augment=_CROPS,
        scaling=_SCALING,
        model=Model(layout="imagenet", depth=18),
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(nesterov=True, weight_decay=5e-4),
        schedule=Schedule(name="one-cycle", rate=0.05, warmup="1/6"),
        global_batch_size=32,
        epochs=30,
    )


def finetune() -> Experiment:
    """A folder of your own images: trains a new last layer on Keras's ResNet-50 with its ImageNet
    weights. The other layers do not change.

    `--model.init-from keras:EfficientNetV2B0` uses a different model. `--model.freeze ..conv4`
    also trains the last stage. docs/fine-tuning.md has more."""
    return Experiment(
        data=Data(source="auto", image_size=224),
        augment=_CROPS,
        scaling=Scaling("application"),
        model=Model(depth=50, layout="imagenet", init_from="keras:ResNet50", freeze=("backbone",)),
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(nesterov=True),
        schedule=Schedule(name="one-cycle", rate=0.1, warmup="1/5"),
        global_batch_size=32,
        epochs=5,
    )
