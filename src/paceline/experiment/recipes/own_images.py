"""The recipe that starts from published weights."""

from __future__ import annotations

from paceline.experiment.experiment import Data, Experiment, Model, Optimizer, Schedule


def finetune() -> Experiment:
    """A folder of your own images and a network that knows ImageNet: a new last layer on Keras's
    ResNet-50, whose other layers stay as they are.

    `--model.init-from keras:EfficientNetV2B0` takes another of keras.applications, `--model.freeze
    ..conv4` also trains the last stage. docs/fine-tuning.md has more.

    paceline train finetune --data.dir DIR
    """
    return Experiment(
        data=Data(
            source="auto", image_size=224, flip=True, crop_area_min=0.25, scaling="application"
        ),
        model=Model(depth=50, layout="imagenet", init_from="keras:ResNet50", freeze=("backbone",)),
        optimizer=Optimizer(nesterov=True, weight_decay=1e-4, label_smoothing=0.1),
        schedule=Schedule(name="one-cycle", rate=0.1, warmup=1),
        global_batch_size=32,
        epochs=5,
    )
