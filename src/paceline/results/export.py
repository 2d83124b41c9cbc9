"""Take a run's model elsewhere: as a Keras file, a SavedModel, ONNX or plain safetensors, none of which needs Paceline to be used.

What comes out is written beside its target first, so that the target is whole or not there. `check_target` needs no TensorFlow;
`serve` is what the worker process of `paceline export` calls.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config.experiment import Data
from paceline.config.job import Job
from paceline.errors import UserError
from paceline.messages import Send, Warn
from paceline.run_folder.files import explained
from paceline.run_folder.folder import RunFolder

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from paceline.results.predictor import Trained

FACTS = "paceline.json"
"""What is attached to an export, beside or inside it: class names, sizes, scaling, and where it comes from."""
OPSET = 17
PIXELS = "pixels from 0 to 255"


def check_target(out: str, to: str, force: bool) -> None:
    """A target that exists is never replaced without --force, and a folder only where it is a SavedModel."""
    path = Path(out)
    if to == "keras" and path.suffix != ".keras":
        raise UserError(
            f"OUT is {out}; Keras opens its files only by the ending .keras: use {path.with_suffix('.keras')}"
        )
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} for {path.name}; make it first")
    if not path.exists():
        return
    if not force:
        raise UserError(f"{out} exists; give --force to replace it, or another name")
    if path.is_dir() != (to == "savedmodel") or (
        path.is_dir() and any(path.iterdir()) and not (path / "saved_model.pb").exists()
    ):
        raise UserError(
            f"{out} is something else than an export to {to}; remove it yourself, or give another name"
        )


def serve(job: Job, send: Send) -> dict[str, Any]:
    """A worker's part of `export`."""
    from paceline.results.predictor import load_trained

    run, to, out, serving = (
        RunFolder(job.run.run_dir),
        job.request["to"],
        Path(job.request["out"]),
        job.request["serving"],
    )
    if to == "onnx":
        _need_onnx()
    trained = load_trained(run, job.request["checkpoint"], precision="float32")
    if job.experiment.precision != "float32":
        send(
            Warn(f"the export computes in float32, the training did in {job.experiment.precision}")
        )
    if serving and to in ("keras", "onnx"):
        shape = " x ".join(map(str, trained.image_shape))
        send(Warn(f"{to} cannot decode JPEG: the input is {PIXELS}, float32 [n, {shape}]"))
    facts = _facts(run, trained, serving, to)
    with (
        explained("write", out),
        tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder,
    ):
        new, old = Path(folder, f"new{out.suffix}"), Path(folder, "old")
        _WRITERS[to](trained, new, serving, facts)
        if out.exists():
            os.rename(out, old)
        os.rename(new, out)
    return {
        "out": str(out),
        "step": trained.state.step,
        "what": facts["input"] + (f" -> {facts['output']}" if facts["output"] else ""),
    }


def _need_onnx() -> None:
    from importlib.util import find_spec

    if not (find_spec("tf2onnx") and find_spec("onnx")):
        raise UserError("exporting to ONNX needs two packages more: pip install 'paceline[onnx]'")


def _facts(run: RunFolder, trained: Trained, serving: bool, to: str) -> dict[str, Any]:
    data, shape = trained.experiment.data, list(trained.image_shape)
    prepared = f"float32 [n, {', '.join(map(str, shape))}]"
    taken = f"{PIXELS if serving else 'scaled pictures'}, {prepared}"
    if to == "safetensors" or (serving and to == "savedmodel"):
        taken = "JPEG or PNG pictures, strings [n]" if serving else "weights alone"
    logits = trained.experiment.model.outputs == "logits" and not serving
    given = f"{'logits' if logits else 'probabilities'}, float32 [n, {len(trained.classes)}]"
    return {
        "classes": list(trained.classes),
        "input": taken,
        "output": "" if to == "safetensors" else given,
        "image_shape": shape,
        "scaling": {"kind": data.scaling, "mean": list(data.mean), "std": list(data.std)},
        "run": run.path.name,
        "step": trained.state.step,
        "state_sha256": trained.state.sha256(),
    }


def _to_safetensors(trained: Trained, path: Path, serving: bool, facts: dict[str, Any]) -> None:
    """The variables that are evaluated by their names in the model."""
    from safetensors.numpy import save_file

    named: dict[str, np.ndarray] = {}
    template = trained.template
    for part, vector in ((template.params, trained.params), (template.stats, trained.stats)):
        pieces = np.split(vector, np.cumsum([int(np.prod(shape)) for _, shape in part]))
        named |= {
            name: np.ascontiguousarray(piece.reshape(shape))
            for (name, shape), piece in zip(part, pieces, strict=False)
        }
    text = {
        name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in facts.items()
    }
    save_file(named, path, text | {"format": "tf"})
    path.chmod(0o644)


def _to_keras(trained: Trained, path: Path, serving: bool, facts: dict[str, Any]) -> None:
    model = portable_model(trained)
    if serving:
        model = _with_scaling(model, trained)
    model.save(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(FACTS, json.dumps(facts, indent=2))


def portable_model(trained: Trained) -> keras.Model:
    """The trained model with Keras's own BatchNormalization in place of the fused one, so that Keras alone can load it."""
    import keras

    from paceline.models.batch_norm import FusedBatchNormalization

    def clone(layer: keras.Layer) -> keras.Layer:
        kind = (
            keras.layers.BatchNormalization
            if isinstance(layer, FusedBatchNormalization)
            else type(layer)
        )
        return kind.from_config(layer.get_config())

    trained.template.assign(trained.params, trained.stats)
    model = keras.models.clone_model(trained.template.model, clone_function=clone)
    model.set_weights(trained.template.model.get_weights())
    return model


def _with_scaling(model: keras.Model, trained: Trained) -> keras.Model:
    import keras

    pixels = keras.Input(trained.image_shape, name="pixels")
    outputs = model(_scaled(trained.experiment.data, trained.image_shape, pixels))
    if trained.experiment.model.outputs == "logits":
        outputs = keras.layers.Softmax(name="probabilities")(outputs)
    return keras.Model(pixels, outputs, name=f"{model.name}_serving")


def _scaled(data: Data, shape: tuple[int, int, int], x: keras.KerasTensor) -> keras.KerasTensor:
    """`augment.scale` in Keras's own layers."""
    from keras import layers, ops

    if data.scaling == "standardise":
        axes = (1, 2, 3)
        deviation = ops.maximum(ops.std(x, axis=axes, keepdims=True), float(np.prod(shape)) ** -0.5)
        return (x - ops.mean(x, axis=axes, keepdims=True)) / deviation
    if data.scaling == "unit":
        return layers.Rescaling(1 / 128, -1.0, name="scaling")(x)
    deviations = data.std if data.scaling == "mean_std" else (1.0,) * 3
    variances = [each**2 for each in deviations[: shape[2]]]
    return layers.Normalization(
        mean=list(data.mean[: shape[2]]), variance=variances, name="scaling"
    )(x)


def _to_savedmodel(trained: Trained, path: Path, serving: bool, facts: dict[str, Any]) -> None:
    import tensorflow as tf

    module, function = tf.Module(), _build_function(trained, serving, from_files=serving)
    trained.template.assign(trained.params, trained.stats)
    module.weights = [variable.value for variable in trained.template.model.variables]
    module.classes = tf.constant(trained.classes)

    def named(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = function(inputs)
        label = tf.argmax(outputs, axis=-1)
        chosen = {"label": label, "class": tf.gather(module.classes, label)}
        return {("probabilities" if serving else "outputs"): outputs, **(chosen if serving else {})}

    spec = (
        tf.TensorSpec([None], tf.string, name="encoded")
        if serving
        else tf.TensorSpec([None, *trained.image_shape], tf.float32, name="images")
    )
    module.serve = tf.function(named, input_signature=[spec], autograph=False)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    extra = path / "assets.extra"
    extra.mkdir(exist_ok=True)
    (extra / FACTS).write_text(json.dumps(facts, indent=2))


def _to_onnx(trained: Trained, path: Path, serving: bool, facts: dict[str, Any]) -> None:
    import onnx
    import tensorflow as tf
    import tf2onnx

    trained.template.assign(trained.params, trained.stats)
    spec = [
        tf.TensorSpec(
            [None, *trained.image_shape], tf.float32, name="pixels" if serving else "images"
        )
    ]
    function = tf.function(
        _build_function(trained, serving, from_files=False), input_signature=spec, autograph=False
    )
    model, _ = tf2onnx.convert.from_function(function, input_signature=spec, opset=OPSET)
    _rename_output(model.graph, "probabilities" if serving else "outputs")
    text = {
        name: fact if isinstance(fact, str) else json.dumps(fact) for name, fact in facts.items()
    }
    onnx.helper.set_model_props(model, text)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _rename_output(graph: Any, name: str) -> None:
    """TensorFlow calls it Identity:0."""
    (output,) = graph.output
    for node in graph.node:
        for index, each in enumerate(node.output):
            if each == output.name:
                node.output[index] = name
    output.name = name


def _build_function(
    trained: Trained, serving: bool, from_files: bool
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Pictures in, outputs of the model out; when serving, pixels or files in and probabilities out."""
    import tensorflow as tf

    from paceline.data import augment
    from paceline.data.batches import prepare_encoded

    data, logits = trained.experiment.data, trained.experiment.model.outputs == "logits"

    def prepare(inputs: tf.Tensor) -> tf.Tensor:
        if not serving:
            return inputs
        return (
            prepare_encoded(data, trained.stored_shape, inputs)
            if from_files
            else augment.scale(data, inputs)
        )

    def function(inputs: tf.Tensor) -> tf.Tensor:
        outputs = tf.cast(trained.template.model(prepare(inputs), training=False), tf.float32)
        return tf.nn.softmax(outputs) if serving and logits else outputs

    return function


_WRITERS: dict[str, Callable[[Any, Path, bool, dict[str, Any]], None]] = {
    "keras": _to_keras,
    "savedmodel": _to_savedmodel,
    "onnx": _to_onnx,
    "safetensors": _to_safetensors,
}
