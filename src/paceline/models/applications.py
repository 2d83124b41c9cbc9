"""The models of `keras.applications`: built with a new head, their published weights, and the
scaling of images that they were trained with."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from paceline.data.draws import initializer_seed
from paceline.errors import UserError, did_you_mean
from paceline.experiment.experiment import (
    KERAS,
    Experiment,
    Model,
    Scaling,
    application_of,
    parse_application,
)

HEAD = "head_dense"
"""Name of the new last layer."""


def build_application(
    model: Model, image_shape: tuple[int, int, int], num_classes: int, seed: int
) -> keras.Model:
    """Return the network with the mean over its last features, and a new layer of logits."""
    name = application_of(model)
    if model.outputs != "logits":
        raise UserError(f"model.outputs is {model.outputs}; keras:{name} gets a head of logits")
    build = find_application(name)
    try:
        base = build(include_top=False, weights=None, input_shape=image_shape, pooling="avg")
    except ValueError as error:
        raise UserError(f"keras:{name} cannot be built: {_first_line(error)}") from error
    kernel = keras.initializers.GlorotUniform(seed=initializer_seed(f"weights/{HEAD}", seed))
    dense = layers.Dense(num_classes, name=HEAD, dtype="float32", kernel_initializer=kernel)
    return keras.Model(base.inputs, dense(base.outputs[0]), name=base.name)


def find_application(name: str) -> Any:
    """Return the function of `keras.applications` that builds a network."""
    known = [each for each in dir(keras.applications) if each[0].isupper()]
    if name not in known:
        raise UserError(f"there is no keras.applications.{name}; {did_you_mean(name, known)}")
    return getattr(keras.applications, name)


def application_weights(name: str, file: str) -> keras.Model:
    """Return the network without its head, with weights from a file, or that Keras downloads or
    finds in its cache."""
    build = find_application(name)
    if not file:
        try:
            return build(include_top=False, weights="imagenet")
        except Exception as error:  # of the network, of the disk, or a wrong checksum
            raise UserError(
                f"model.init-from keras:{name}: Keras cannot download the weights "
                f"({_first_line(error)}); put the file into its cache (~/.keras/models), or give "
                f"the path of the file: keras:{name}:FILE"
            ) from error
    if not Path(file).is_file():
        raise UserError(f"model.init-from keras:{name}: there is no file {file}")
    try:
        return build(include_top=False, weights=file)
    except (ValueError, OSError, KeyError):
        pass  # perhaps with the head
    try:
        return build(include_top=True, weights=file)
    except (ValueError, OSError, KeyError) as error:
        raise UserError(
            f"model.init-from: {file} does not have the weights of {name}: {_first_line(error)}"
        ) from error


def with_own_scaling(experiment: Experiment) -> Experiment:
    """Return the experiment with the scaling of its application in place of `application`."""
    if experiment.scaling.method != "application":
        return experiment
    start = experiment.model.init_from
    name = application_of(experiment.model)
    if not name and start.startswith(KERAS):
        name = parse_application(start)[0]
    if not name:
        raise UserError(
            "scaling.method is application, but the model is not from keras.applications; give "
            "--model.init-from keras:NAME or a different method"
        )
    return replace(experiment, scaling=own_scaling(name))


def own_scaling(name: str) -> Scaling:
    """Return the scaling of the application's own `preprocess_input`.

    That function is tried on four pixels: black, red, green and blue. It multiplies and shifts each
    channel, and may exchange red and blue.
    """
    prepare = importlib.import_module(find_application(name).__module__).preprocess_input
    pixels = np.zeros([4, 1, 1, 3], np.float32)
    pixels[[1, 2, 3], 0, 0, [0, 1, 2]] = 255
    black, *colors = np.asarray(prepare(pixels), np.float64)[:, 0, 0]
    slopes = (np.stack(colors) - black) / 255  # by color, then by channel
    order = slopes.argmax(0)
    factors = slopes.max(0)
    mean = tuple(np.round(-black / factors, 3).tolist())
    std = tuple(np.round(1 / factors, 3).tolist())
    if order.tolist() == [2, 1, 0] and std == (1.0, 1.0, 1.0):
        return Scaling("bgr_mean", mean=mean[::-1], std=std)
    if order.tolist() != [0, 1, 2]:
        raise UserError(
            f"the preprocessing of keras:{name} is unknown; give a different scaling.method"
        )
    return Scaling("mean_std", mean=mean, std=std)


def scaling_warning(experiment: Experiment) -> str:
    """Return a warning if the weights to start from were trained on images of another scaling."""
    spec = experiment.model.init_from
    if not spec.startswith(KERAS):
        return ""
    own = own_scaling(parse_application(spec)[0])
    if own == experiment.scaling:
        return ""
    return (
        f"{spec} was trained on images of a different scaling ({own.method}, mean {own.mean}, std "
        f"{own.std}); use --scaling.method application"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
