"""The formats of `paceline export`: one writer for each, and their table.

With `serving`, an export contains the preprocessing: it takes pixels or image files and returns
probabilities. Without, it takes scaled images and returns the model's outputs. Only the writers
import TensorFlow.
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


def _write_keras(trained: TrainedModel, path: Path, serving: bool, facts: Facts) -> None:
    import keras

    model = _portable_model(trained)
    if serving:
        pixels = keras.Input(trained.image_shape, name="pixels")
        outputs = model(scaling_layers(trained.experiment.scaling, trained.image_shape, pixels))
        if trained.gives_logits:
            outputs = keras.layers.Softmax(name="probabilities")(outputs)
        model = keras.Model(pixels, outputs, name=f"{model.name}_serving")
    model.save(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(FACTS_FILE, json.dumps(facts, indent=2))


def _portable_model(trained: TrainedModel) -> keras.Model:
    """Return the model in Keras's own layers, so that Keras alone can load it."""
    import keras

    from paceline.maths.view_average import mean_over_views
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
    if trained.views == "none":
        return model
    images = keras.Input(trained.image_shape, name="images")
    outputs = mean_over_views(model, images, trained.views)
    return keras.Model(images, outputs, name=f"{model.name}_{trained.views}")


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


def _write_savedmodel(trained: TrainedModel, path: Path, serving: bool, facts: Facts) -> None:
    import tensorflow as tf

    from paceline.formats.encoded.prepare import prepare_encoded

    decode = partial(prepare_encoded, trained.experiment, trained.stored_shape)
    function = _build_function(trained, decode if serving else None)
    module = tf.Module()
    module.weights = [variable.value for variable in trained.template.model.variables]
    module.classes = tf.constant(trained.classes)

    def serve(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = function(inputs)
        if not serving:
            return {"outputs": outputs}
        label = tf.argmax(outputs, axis=-1)
        return {"probabilities": outputs, "label": label, "class": tf.gather(module.classes, label)}

    spec = tf.TensorSpec([None], tf.string, "encoded") if serving else _images(trained, "images")
    module.serve = tf.function(serve, input_signature=[spec], autograph=False)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    extra = path / "assets.extra"
    extra.mkdir(exist_ok=True)
    (extra / FACTS_FILE).write_text(json.dumps(facts, indent=2))


def _write_onnx(trained: TrainedModel, path: Path, serving: bool, facts: Facts) -> None:
    import onnx
    import tensorflow as tf
    import tf2onnx

    from paceline.data.images import scale

    spec = [_images(trained, "pixels" if serving else "images")]
    scaled = partial(scale, trained.experiment.scaling)
    function = _build_function(trained, scaled if serving else None)
    function = tf.function(function, input_signature=spec, autograph=False)
    model, _ = tf2onnx.convert.from_function(function, input_signature=spec, opset=OPSET)
    (output,) = model.graph.output  # TensorFlow calls it Identity:0
    name = "probabilities" if serving else "outputs"
    for node in model.graph.node:
        node.output[:] = [name if each == output.name else each for each in node.output]
    output.name = name
    onnx.helper.set_model_props(model, _texts(facts))
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _images(trained: TrainedModel, name: str) -> tf.TensorSpec:
    import tensorflow as tf

    return tf.TensorSpec([None, *trained.image_shape], tf.float32, name=name)


def _build_function(
    trained: TrainedModel, prepare: Callable[[tf.Tensor], tf.Tensor] | None
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Build: images -> outputs; or with `prepare`: what it takes -> probabilities."""
    import tensorflow as tf

    from paceline.maths.view_average import mean_over_views

    model = trained.with_weights()

    def call(images: tf.Tensor) -> tf.Tensor:
        return tf.cast(model(images, training=False), tf.float32)

    def function(inputs: tf.Tensor) -> tf.Tensor:
        outputs = mean_over_views(call, prepare(inputs) if prepare else inputs, trained.views)
        return tf.nn.softmax(outputs) if prepare and trained.gives_logits else outputs

    return function


def _write_safetensors(trained: TrainedModel, path: Path, serving: bool, facts: Facts) -> None:
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
    """A format: its writer (model, path, serving, facts), and what is special about it."""

    write: Callable[[TrainedModel, Path, bool, Facts], None]
    suffix: str = ""
    """The file must end in this."""
    is_folder: bool = False
    decodes_files: bool = False
    """With `serving` it takes JPEG and PNG files, not pixels."""
    weights_only: bool = False
    packages: tuple[str, ...] = ()
    """Packages that Paceline itself does not need."""


FORMATS = {
    "keras": Format(_write_keras, suffix=".keras"),
    "savedmodel": Format(_write_savedmodel, is_folder=True, decodes_files=True),
    "onnx": Format(_write_onnx, packages=("tf2onnx", "onnx")),
    "safetensors": Format(_write_safetensors, weights_only=True),
}
