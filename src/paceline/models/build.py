"""Experiment -> Keras model: a built-in network, or one from elsewhere (`fine_tuning`)."""

from __future__ import annotations

from importlib import import_module

import keras

from paceline.experiment.experiment import Experiment, application_of

LAYOUTS = {
    "cifar": ("paceline.models.resnet", "build_resnet"),
    "imagenet": ("paceline.models.resnet", "build_resnet"),
    "speedrun": ("paceline.models.speedrun", "build_speedrun"),
}
"""By `model.layout`: the function that builds the network."""
GIVEN = ("paceline.models.fine_tuning", "build_given")
"""Builds the network that `model.build` names, or that of the weights to start from."""


def build_model(
    experiment: Experiment, image_shape: tuple[int, int, int], num_classes: int
) -> keras.Model:
    """Return a model whose initial weights depend on the experiment alone."""
    keras.utils.set_random_seed(experiment.seed)
    precision, model = experiment.precision, experiment.model
    keras.config.set_dtype_policy("float32" if precision == "float32" else f"mixed_{precision}")
    is_given = model.build or application_of(model)
    module, name = GIVEN if is_given else LAYOUTS[model.layout]
    build = getattr(import_module(module), name)
    built: keras.Model = build(model, image_shape, num_classes, experiment.seed)
    if model.freeze:
        from paceline.models.fine_tuning import freeze_layers

        freeze_layers(built, model.freeze)
    return built
