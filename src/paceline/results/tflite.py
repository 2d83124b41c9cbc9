"""`paceline export RUN model.tflite`: LiteRT by TensorFlow's own converter, in float32 or int8.

The model takes pixels of its own size, one image at a time. As in all files with TensorFlow Lite's
metadata, a zip archive follows the model: it contains `paceline.json`.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import UserError, first_line
from paceline.messages import Send
from paceline.results.export_formats import FACTS_FILE, Facts, serving_model

if TYPE_CHECKING:
    import keras

    from paceline.results.trained_model import TrainedModel
    from paceline.run_folder.folder import RunFolder

SAMPLE = 200
"""Training images that calibrate int8; TensorFlow's guide recommends 100 to 500."""
LEAST_AGREEMENT = 0.75
"""Share of these images for which int8 must predict the same class as float32."""


def sample_images(run: RunFolder, trained: TrainedModel, data_dir: str, send: Send) -> np.ndarray:
    """Return training images as evaluation prepares them: float32 pixels from 0 to 255."""
    import tensorflow as tf

    from paceline.data.batches import evaluation_images
    from paceline.data.build_source import build_source
    from paceline.data.source import hold_out
    from paceline.results.evaluate import with_data
    from paceline.storage.locations import bring_data

    experiment = with_data(run, data_dir)
    data = experiment.data
    bring_data(data.dir, send)
    train, _ = hold_out(build_source(data, experiment.records), data.validation)
    chosen = np.random.default_rng(experiment.seed).permutation(train.size)[:SAMPLE]
    indices = tf.constant(np.sort(chosen))
    raw, _ = train.read(indices)
    pixels = np.asarray(evaluation_images(experiment, raw), np.float32)
    if pixels.shape[1:] != trained.image_shape:
        raise UserError(
            f"the images of {data.dir or data.source} have the shape {pixels.shape[1:]}, those of "
            f"the training {trained.image_shape}; pass the --data.dir of the same data set"
        )
    return pixels


def write_tflite(
    trained: TrainedModel, path: Path, facts: Facts, sample: np.ndarray | None = None
) -> str:
    """Write float32, or int8 if there is a sample; return how well int8 agrees with float32."""
    model = serving_model(trained)
    content = _convert(model, sample)
    note = "" if sample is None else _compare(model, content, sample)
    path.write_bytes(content)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(FACTS_FILE, json.dumps(facts, indent=2))
    return note


def _convert(model: keras.Model, sample: np.ndarray | None) -> bytes:
    import tensorflow as tf

    # constants: the calibration of int8 cannot read variables
    values = (model.trainable_variables, model.non_trainable_variables)
    trainable, others = ([tf.constant(each.numpy()) for each in part] for part in values)
    module = tf.Module()  # without one, the file has no names of inputs and outputs

    def serve(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs, _ = model.stateless_call(trainable, others, pixels, training=False)
        return {"probabilities": outputs}

    spec = tf.TensorSpec([1, *model.input_shape[1:]], tf.float32, "pixels")
    module.serve = tf.function(serve, input_signature=[spec], autograph=False)
    function = module.serve.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
    if sample is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([image[None]] for image in sample)
    try:
        return bytes(converter.convert())
    except Exception as error:  # its own exceptions have no common base
        raise UserError(
            f"TensorFlow's converter cannot write this model to tflite: {first_line(error)}; "
            "pass --to onnx or savedmodel"
        ) from error


def run_tflite(content: bytes, images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the probabilities of each image."""
    import tensorflow as tf

    with warnings.catch_warnings():  # this interpreter will move to a package that TF 2.21 has not
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_content=content)
    serve = interpreter.get_signature_runner()
    for image in images:
        yield serve(pixels=image[None])["probabilities"][0]


def _compare(model: keras.Model, content: bytes, sample: np.ndarray) -> str:
    expected = model.predict(sample, verbose=0).argmax(axis=1)
    found = np.stack(list(run_tflite(content, sample))).argmax(axis=1)
    agreeing, count = int((expected == found).sum()), len(sample)
    if agreeing < LEAST_AGREEMENT * count:
        raise UserError(
            f"int8 predicts the class of float32 for only {agreeing} of {count} training images, "
            "so it was not written; export without --quantize, or train with a larger model"
        )
    return f"int8 predicts the class of float32 for {agreeing} of {count} training images"
