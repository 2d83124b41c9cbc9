"""Experiment -> Keras model: a built-in network, one of keras.applications, or a user's own
function or .keras file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import keras

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment, application_of
from paceline.experiment.user_code import SAVED_MODEL, load_function

LAYOUTS = {
    "cifar": ("paceline.models.resnet", "build_resnet"),
    "imagenet": ("paceline.models.resnet", "build_resnet"),
    "speedrun": ("paceline.models.speedrun", "build_speedrun"),
}
"""By `model.layout`: the function that builds the network."""
APPLICATION = ("paceline.models.applications", "build_application")
Shape = tuple[int, int, int]


def build_model(experiment: Experiment, image_shape: Shape, num_classes: int) -> keras.Model:
    """Return a model whose initial weights depend on the experiment alone."""
    keras.utils.set_random_seed(experiment.seed)
    precision, model = experiment.precision, experiment.model
    keras.config.set_dtype_policy("float32" if precision == "float32" else f"mixed_{precision}")
    if model.build and not application_of(model):
        built = _build_own(model.build, image_shape, num_classes)
    else:
        module, name = APPLICATION if application_of(model) else LAYOUTS[model.layout]
        build = getattr(import_module(module), name)
        built = build(model, image_shape, num_classes, experiment.seed)
    if model.freeze:
        from paceline.models.freezing import freeze_layers

        freeze_layers(built, model.freeze)
    return built


def _build_own(spec: str, image_shape: Shape, num_classes: int) -> keras.Model:
    if spec.endswith(SAVED_MODEL):
        model = _load_saved(spec)
    else:
        model = load_function(spec)(image_shape=image_shape, num_classes=num_classes)
    if not isinstance(model, keras.Model):
        raise UserError(
            f"model.build {spec} returned {type(model).__name__}; it must return a keras.Model"
        )
    if not model.built:
        model.build((None, *image_shape))
    shape = tuple(model.compute_output_shape((None, *image_shape)))
    if shape != (None, num_classes):
        raise UserError(
            f"model.build {spec} gives outputs {shape}; it must give (None, {num_classes})"
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
