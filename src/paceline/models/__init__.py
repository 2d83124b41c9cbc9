"""Experiment -> Keras model: the ResNet family, or a user's own function."""

from __future__ import annotations

import keras

from paceline.config.experiment import Experiment
from paceline.config.plugins import load_function
from paceline.errors import UserError
from paceline.models.resnet import build_resnet
from paceline.models.speedrun import build_speedrun


def build_model(
    experiment: Experiment, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Return a model whose initial weights depend on the experiment alone."""
    keras.utils.set_random_seed(experiment.seed)
    keras.config.set_dtype_policy(
        "mixed_bfloat16" if experiment.precision == "bfloat16" else "float32"
    )
    if not experiment.model.build:
        build = build_speedrun if experiment.model.layout == "speedrun" else build_resnet
        return build(experiment.model, image_shape, num_classes, experiment.seed)
    model = load_function(experiment.model.build)(image_shape=image_shape, num_classes=num_classes)
    if not isinstance(model, keras.Model):
        raise UserError(
            f"model.build {experiment.model.build} returned {type(model).__name__}; "
            "it must return a keras.Model"
        )
    if not model.built:
        model.build((None, *image_shape))
    if tuple(model.compute_output_shape((None, *image_shape))) != (None, num_classes):
        shape = model.compute_output_shape((None, *image_shape))
        raise UserError(
            f"model.build {experiment.model.build} gives outputs {shape}; "
            f"it must give (None, {num_classes})"
        )
    return model
