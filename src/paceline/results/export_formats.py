"""The formats of `paceline export`: one writer for each, and their table.

An export contains as much of the preprocessing as its format can hold: it takes pixels or image
files, and returns probabilities. Only the writers import TensorFlow.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.experiment.experiment import Scaling
from paceline.maths.state import StateLayout

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from paceline.results.trained_model import TrainedModel

FACTS_FILE = "paceline.json"
"""The description of an export, inside it; safetensors and ONNX have it in their metadata."""
OPSET = 17
Facts = dict[str, Any]
"""What is stored with an export, as JSON."""


def _texts(facts: Facts) -> dict[str, str]:
    """Return each fact as text, for the metadata of ONNX and safetensors."""
    return {
        name: each if isinstance(each, str) else json.dumps(each) for name, each in facts.items()
    }


def _write_keras(trained: TrainedModel, path: Path, facts: Facts) -> None:
    serving_model(trained).save(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(FACTS_FILE, json.dumps(facts, indent=2))


def serving_model(trained: TrainedModel) -> keras.Model:
    """Return the model in Keras's own layers, from pixels to probabilities."""
    import keras

    model = _portable_model(trained)
    pixels = keras.Input(trained.image_shape, name="pixels")
    outputs = model(scaling_layers(trained.experiment.scaling, trained.image_shape, pixels))
    if trained.gives_logits:
        outputs = keras.layers.Softmax(name="probabilities")(outputs)
    return keras.Model(pixels, outputs, name=f"{model.name}_serving")


def _portable_model(trained: TrainedModel) -> keras.Model:
    """Return the model in Keras's own layers, so that Keras alone can load it."""
    import keras

    from paceline.models.initial_weights import InitialWeights
    from paceline.models.layers import FusedBatchNormalization, SigmoidGelu

    def clone(layer: keras.Layer) -> keras.Layer:
        fused = isinstance(layer, FusedBatchNormalization)
        kind = keras.layers.BatchNormalization if fused else type(layer)
        config = layer.get_config()
        if isinstance(getattr(layer, "kernel_initializer", None), InitialWeights):
            config["kernel_initializer"] = "glorot_uniform"  # the weights are set below
        return kind.from_config(config)

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, SigmoidGelu):
            return args[0] * keras.ops.sigmoid(SigmoidGelu.ALPHA * args[0])
        return layer(*args, **kwargs)

    original = trained.with_weights()
    gelu = any(isinstance(layer, SigmoidGelu) for layer in original.layers)
    options = {"call_function": call} if gelu else {}
    model = keras.models.clone_model(original, clone_function=clone, **options)
    model.set_weights(original.get_weights())
    return model


def scaling_layers(
    scaling: Scaling, shape: tuple[int, int, int], x: keras.KerasTensor
) -> keras.KerasTensor:
    """Apply `data.augment.scale` as layers of Keras."""
    from keras import layers, ops

    if scaling.method == "standardize":
        axes = (1, 2, 3)
        deviation = ops.maximum(ops.std(x, axis=axes, keepdims=True), float(np.prod(shape)) ** -0.5)
        return (x - ops.mean(x, axis=axes, keepdims=True)) / deviation
    if scaling.method == "unit":
        return layers.Rescaling(1 / 128, -1.0, name="scaling")(x)
    deviations = scaling.std if scaling.method == "mean_std" else (1.0,) * 3
    mean = list(scaling.mean[: shape[2]])
    variance = [each**2 for each in deviations[: shape[2]]]
    scaled = layers.Normalization(mean=mean, variance=variance, name="scaling")(x)
    return ops.flip(scaled, axis=-1) if scaling.method == "bgr_mean" else scaled


def _write_savedmodel(trained: TrainedModel, path: Path, facts: Facts) -> None:
    import tensorflow as tf

    from paceline.formats.encoded.prepare import prepare_encoded

    decode = partial(prepare_encoded, trained.experiment, trained.stored_shape)
    function = _build_function(trained, decode)
    module = tf.Module()
    module.weights = [variable.value for variable in trained.template.model.variables]
    module.classes = tf.constant(trained.classes)

    def serve(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = function(inputs)
        label = tf.argmax(outputs, axis=-1)
        return {"probabilities": outputs, "label": label, "class": tf.gather(module.classes, label)}

    spec = tf.TensorSpec([None], tf.string, "encoded")
    module.serve = tf.function(serve, input_signature=[spec], autograph=False)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    extra = path / "assets.extra"
    extra.mkdir(exist_ok=True)
    (extra / FACTS_FILE).write_text(json.dumps(facts, indent=2))


def _write_onnx(trained: TrainedModel, path: Path, facts: Facts) -> None:
    import onnx
    import tensorflow as tf
    import tf2onnx

    from paceline.data.images import scale
    from paceline.results.any_size import prepare_pixels

    def prepare(images: tf.Tensor) -> tf.Tensor:
        return scale(trained.experiment.scaling, prepare_pixels(facts["preprocessing"], images))

    spec = [tf.TensorSpec([None, None, None, 3], tf.uint8, "pixels")]
    function = _build_function(trained, prepare)
    function = tf.function(function, input_signature=spec, autograph=False)
    model, _ = tf2onnx.convert.from_function(function, input_signature=spec, opset=OPSET)
    (output,) = model.graph.output  # TensorFlow calls it Identity:0
    for node in model.graph.node:
        names = ("probabilities" if each == output.name else each for each in node.output)
        node.output[:] = list(names)
    output.name = "probabilities"
    onnx.helper.set_model_props(model, _texts(facts))
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _write_tflite(trained: TrainedModel, path: Path, facts: Facts) -> None:
    from paceline.results.tflite import write_tflite

    write_tflite(trained, path, facts)


def _build_function(
    trained: TrainedModel, prepare: Callable[[tf.Tensor], tf.Tensor]
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Build the function from what `prepare` takes to probabilities."""
    import tensorflow as tf

    model = trained.with_weights()

    def function(inputs: tf.Tensor) -> tf.Tensor:
        outputs = tf.cast(model(prepare(inputs), training=False), tf.float32)
        return tf.nn.softmax(outputs) if trained.gives_logits else outputs

    return function


def _write_safetensors(trained: TrainedModel, path: Path, facts: Facts) -> None:
    """Write the variables that evaluation takes, by their names in the model."""
    from safetensors.numpy import save_file

    vectors = dict(zip(("params", "stats"), trained.weights, strict=True))
    layout = StateLayout({"params": trained.template.params, "stats": trained.template.stats})
    variables = {
        name.removeprefix(f"{vector}/"): vectors[vector][where].reshape(shape)
        for vector, name, where, shape in layout.pieces()
    }
    save_file(variables, path, _texts(facts) | {"format": "tf"})
    path.chmod(0o644)


@dataclass(frozen=True)
class Format:
    """A format: its writer (model, path, facts), and what is special about it."""

    write: Callable[[TrainedModel, Path, Facts], None]
    suffix: str = ""
    """The file must end in this."""
    is_folder: bool = False
    takes: str = ""
    """What it takes, if not pixels of the model's size; which preprocessing is inside."""
    inside: str = "scale"
    count: str = "n"
    """How many images it takes at a time."""
    weights_only: bool = False
    packages: tuple[str, ...] = ()
    """Packages that Paceline itself does not need."""


FORMATS = {
    "keras": Format(_write_keras, suffix=".keras"),
    "savedmodel": Format(
        _write_savedmodel,
        is_folder=True,
        takes="JPEG or PNG images, strings [n]",
        inside="all steps",
    ),
    "onnx": Format(
        _write_onnx,
        takes="RGB images of any size, uint8 [n, height, width, 3]",
        inside="all steps after decode",
        packages=("tf2onnx", "onnx"),
    ),
    "tflite": Format(_write_tflite, count="1"),
    "safetensors": Format(_write_safetensors, weights_only=True),
}
