"""Predictions of an ONNX file that `paceline export` wrote: in a moment, without TensorFlow."""

import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.errors import UserError, first_line
from paceline.formats.image_folder import FORMATS
from paceline.results.image_bytes import find_fault
from paceline.results.predict import Prediction


def predict_onnx(model: str, files: Sequence[str], top: int) -> Iterator[Prediction]:
    """Yield the prediction of each file."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError(
            "ONNX needs the package onnxruntime: pip install 'paceline[onnx]'"
        ) from None
    if not os.path.isfile(model):
        raise UserError(f"there is no {model}; `paceline export RUN {model}` writes it")
    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own exceptions have no common base
        reason = str(error).splitlines()[0]
        raise UserError(f"{model} is not a complete ONNX file: {reason}") from None
    facts, (given,) = session.get_modelmeta().custom_metadata_map, session.get_inputs()
    if given.type != "tensor(uint8)" or "classes" not in facts:
        raise UserError(f"{model} does not take images; export it with `paceline export RUN OUT`")
    classes = json.loads(facts["classes"])
    for file in files:
        try:
            (outputs,) = session.run(None, {given.name: _pixels(file)[None]})
        except ValueError as error:
            yield Prediction(file, error=str(error))
            continue
        best = (-outputs[0]).argsort(kind="stable")[:top]
        yield Prediction(file, tuple((classes[k], float(outputs[0][k])) for k in best))


def _pixels(file: str) -> np.ndarray:
    """Return the pixels of an image, uint8 [height, width, 3]; ValueError if there are none."""
    from PIL import Image, ImageOps

    try:
        data = Path(file).read_bytes() if os.path.isfile(file) else b""
        if fault := find_fault(data):
            raise ValueError(fault)
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            is_jpeg = image.format in ("JPEG", "MPO")
            upright = ImageOps.exif_transpose(image) if is_jpeg else image
            return np.asarray(upright.convert("RGB"))
    except ValueError:
        raise
    except Exception as error:  # damaged data can raise anything
        raise ValueError(f"cannot be decoded: {first_line(error)}") from None
