"""Models and weights from elsewhere: a user's own model, those of `keras.applications` with a new
head and their scaling of images, weights of .keras files; and layers that are not trained."""

from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from paceline.data.draws import initializer_seed
from paceline.errors import UserError, did_you_mean, first_line
from paceline.experiment.experiment import (
    KERAS,
    Experiment,
    Model,
    Scaling,
    application_of,
    parse_application,
)
from paceline.experiment.user_code import SAVED_MODEL, load_function
from paceline.models.keras_graph import relative_names
from paceline.models.layers import FusedBatchNormalization
from paceline.storage.locations import is_remote

HEAD = "head_dense"
"""Name of the new last layer."""
BACKBONE = "backbone"
"""In `model.freeze`: all layers before the last one with weights."""
RANGE = ".."
Shape = tuple[int, int, int]


def build_given(model: Model, image_shape: Shape, num_classes: int, seed: int) -> keras.Model:
    """Return the network that `model.build` names: one of keras.applications, or what a user's own
    function returns or .keras file contains."""
    if application_of(model):
        return build_application(model, image_shape, num_classes, seed)
    spec = model.build
    if spec.endswith(SAVED_MODEL):
        try:  # with its weights; it runs no code of the file
            file = Path(spec).expanduser()
            built = keras.saving.load_model(file, compile=False, safe_mode=True)
        except (ValueError, TypeError, OSError) as error:
            raise UserError(
                f"model.build {spec} cannot be loaded: {first_line(error)}; for your own "
                "layers, give a function that builds the model"
            ) from error
    else:
        built = load_function(spec)(image_shape=image_shape, num_classes=num_classes)
    if not isinstance(built, keras.Model):
        raise UserError(
            f"model.build {spec} returned {type(built).__name__}; it must return a keras.Model"
        )
    if not built.built:
        built.build((None, *image_shape))
    shape = tuple(built.compute_output_shape((None, *image_shape)))
    if shape != (None, num_classes):
        raise UserError(
            f"model.build {spec} gives outputs {shape}; it must give (None, {num_classes})"
        )
    return built


def build_application(model: Model, image_shape: Shape, num_classes: int, seed: int) -> keras.Model:
    """Return the network with the mean over its last features, and a new layer of logits."""
    name = application_of(model)
    if model.outputs != "logits":
        raise UserError(f"model.outputs is {model.outputs}; keras:{name} gets a head of logits")
    build = _find_application(name)
    try:
        base = build(include_top=False, weights=None, input_shape=image_shape, pooling="avg")
    except ValueError as error:
        raise UserError(f"keras:{name} cannot be built: {first_line(error)}") from error
    kernel = keras.initializers.GlorotUniform(seed=initializer_seed(f"weights/{HEAD}", seed))
    dense = layers.Dense(num_classes, name=HEAD, dtype="float32", kernel_initializer=kernel)
    return keras.Model(base.inputs, dense(base.outputs[0]), name=base.name)


def _find_application(name: str) -> Any:
    """Return the function of `keras.applications` that builds a network."""
    known = [each for each in dir(keras.applications) if each[0].isupper()]
    if name not in known:
        raise UserError(f"there is no keras.applications.{name}; {did_you_mean(name, known)}")
    return getattr(keras.applications, name)


def read_application(spec: str) -> dict[str, np.ndarray]:
    """Return the published weights of keras:NAME by variable name, from the file of
    keras:NAME:FILE, or as Keras downloads them or finds them in its cache."""
    name, file = parse_application(spec)
    build = _find_application(name)
    if not file:
        try:
            return _by_name(build(include_top=False, weights="imagenet"))
        except Exception as error:  # of the network, of the disk, or a wrong checksum
            raise UserError(
                f"model.init-from keras:{name}: Keras cannot download the weights "
                f"({first_line(error)}); put the file into its cache (~/.keras/models), or give "
                f"the path of the file: keras:{name}:FILE"
            ) from error
    if not Path(file).is_file():
        raise UserError(f"model.init-from keras:{name}: there is no file {file}")
    for with_head in (False, True):
        try:
            return _by_name(build(include_top=with_head, weights=file))
        except (ValueError, OSError, KeyError) as error:
            reason = first_line(error)
    raise UserError(f"model.init-from: {file} does not have the weights of {name}: {reason}")


def read_keras_file(file: str) -> dict[str, np.ndarray]:
    """Return the weights of a .keras file by variable name. It runs no code of the file."""
    if is_remote(file):
        raise UserError(
            f"model.init-from is {file}; on remote storage it can only be a run folder: copy the "
            ".keras file to this machine first"
        )
    if not Path(file).is_file():
        raise UserError(f"model.init-from: there is no file {file}")
    own = {"FusedBatchNormalization": FusedBatchNormalization}
    try:
        model = keras.models.load_model(file, custom_objects=own, compile=False, safe_mode=True)
    except (ValueError, OSError, TypeError) as error:
        raise UserError(f"model.init-from: {file} cannot be read: {first_line(error)}") from error
    return _by_name(model)


def _by_name(model: keras.Model) -> dict[str, np.ndarray]:
    names = relative_names(model, model.weights)
    return dict(zip(names, (v.numpy() for v in model.weights), strict=True))


def with_own_scaling(experiment: Experiment) -> Experiment:
    """Return the experiment with the scaling of its application in place of `application`."""
    if experiment.scaling.method != "application":
        return experiment
    name, start = application_of(experiment.model), experiment.model.init_from
    if not name and not start.startswith(KERAS):
        raise UserError(
            "scaling.method is application, but the model is not from keras.applications; pass "
            "--model.init-from keras:NAME or a different method"
        )
    return replace(experiment, scaling=own_scaling(name or parse_application(start)[0]))


def own_scaling(name: str) -> Scaling:
    """Return the scaling of the application's own `preprocess_input`.

    That function is tried on four pixels: black, red, green and blue. It multiplies and shifts each
    channel, and may exchange red and blue.
    """
    prepare = import_module(_find_application(name).__module__).preprocess_input
    pixels = np.zeros([4, 1, 1, 3], np.float32)
    pixels[[1, 2, 3], 0, 0, [0, 1, 2]] = 255
    black, *colors = np.asarray(prepare(pixels), np.float64)[:, 0, 0]
    slopes = (np.stack(colors) - black) / 255  # by color, then by channel
    order, factors = slopes.argmax(0).tolist(), slopes.max(0)
    mean, std = (tuple(np.round(each, 3).tolist()) for each in (-black / factors, 1 / factors))
    if order == [2, 1, 0] and std == (1.0, 1.0, 1.0):
        return Scaling("bgr_mean", mean=mean[::-1], std=std)
    if order != [0, 1, 2]:
        raise UserError(
            f"the preprocessing of keras:{name} is unknown; give a different scaling.method"
        )
    return Scaling("mean_std", mean=mean, std=std)


def scaling_warning(experiment: Experiment) -> str:
    """Return a warning if the weights to start from were trained on images of another scaling."""
    spec = experiment.model.init_from
    own = own_scaling(parse_application(spec)[0]) if spec.startswith(KERAS) else experiment.scaling
    if own == experiment.scaling:
        return ""
    return (
        f"{spec} was trained on images of a different scaling ({own.method}, mean {own.mean}, std "
        f"{own.std}); use --scaling.method application"
    )


def freeze_layers(model: keras.Model, specs: tuple[str, ...]) -> None:
    """Mark the layers that `specs` name as not trainable: their weights stay as they are, and
    their BatchNorm normalizes with its stored statistics."""
    for spec in specs:
        for layer in _find_layers(model.layers, spec):
            layer.trainable = False
    if not model.trainable_variables:
        raise UserError(
            f"model.freeze {' '.join(specs)} leaves nothing to train; leave out the last layer, as "
            f"{BACKBONE} does"
        )


def _find_layers(known: list[keras.Layer], spec: str) -> list[keras.Layer]:
    if spec == BACKBONE:
        return known[: max(index for index, layer in enumerate(known) if layer.weights)]
    names = [layer.name for layer in known]
    if RANGE not in spec:
        return [known[index] for index in _indices(names, spec)]
    start, _, stop = spec.partition(RANGE)
    first = _indices(names, start)[0] if start else 0
    last = _indices(names, stop)[-1] if stop else len(known) - 1
    if first > last:
        raise UserError(f"model.freeze {spec}: {start} comes after {stop} in the model")
    return known[first : last + 1]


def _indices(names: list[str], pattern: str) -> list[int]:
    """Return the layers that a pattern means: stage1 includes stage1_block1_conv1, not stage10."""

    def fits(name: str) -> bool:
        rest = name.removeprefix(pattern)
        begins = rest != name and not (rest[:1].isdigit() and pattern[-1:].isdigit())
        return begins or fnmatchcase(name, pattern)

    found = [index for index, name in enumerate(names) if fits(name)]
    if not found:
        near = did_you_mean(pattern, names)
        raise UserError(f"model.freeze: no layer name matches or starts with {pattern}; {near}")
    return found
