"""Experiment -> Keras model: the ResNet family, one of keras.applications, or a user's own
function."""

from __future__ import annotations

from pathlib import Path

import keras

from paceline.errors import UserError
from paceline.experiment.application_names import application_of
from paceline.experiment.experiment import Experiment
from paceline.experiment.user_code import SAVED_MODEL, load_function
from paceline.models.applications import build_application
from paceline.models.freezing import freeze_layers
from paceline.models.resnet import build_resnet
from paceline.models.speedrun import build_speedrun


def build_model(
    experiment: Experiment, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Return a model whose initial weights depend on the experiment alone."""
    keras.utils.set_random_seed(experiment.seed)
    precision = experiment.precision
    keras.config.set_dtype_policy("float32" if precision == "float32" else f"mixed_{precision}")
    model = _build(experiment, image_shape, num_classes)
    freeze_layers(model, experiment.model.freeze)
    return model


def _build(
    experiment: Experiment, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    if application_of(experiment.model):
        return build_application(experiment.model, image_shape, num_classes, experiment.seed)
    if not experiment.model.build:
        build = build_speedrun if experiment.model.layout == "speedrun" else build_resnet
        return build(experiment.model, image_shape, num_classes, experiment.seed)
    if experiment.model.build.endswith(SAVED_MODEL):
        model = _load_saved(experiment.model.build)
    else:
        build_own = load_function(experiment.model.build)
        model = build_own(image_shape=image_shape, num_classes=num_classes)
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


def _load_saved(file: str) -> keras.Model:
    """Load a .keras file with its weights. It runs no code of the file."""
    try:
        return keras.saving.load_model(Path(file).expanduser(), compile=False, safe_mode=True)
    except (ValueError, TypeError, OSError) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"model.build {file} cannot be loaded: {reason}; for layers of your own, give a "
            "function that builds the model"
        ) from error
