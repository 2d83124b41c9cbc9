"""`paceline predict`: which image files are meant, and their predictions in a worker process.

The model itself belongs to `predictor`. Only `run_job`, which the worker calls, needs TensorFlow.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError
from paceline.formats import image_folder as pictures
from paceline.job import Job
from paceline.messages import Predictions, Send
from paceline.requests import PredictRequest

if TYPE_CHECKING:
    from paceline.results.predictor import Predictor

ENDINGS = (*pictures.ENDINGS, ".tif", ".tiff", ".ppm", ".pgm")
"""Files in a folder that count as images. A file that is named itself may have any ending."""


@dataclass(frozen=True)
class Prediction:
    """Classes with their probabilities, the highest first, or what is wrong with the file."""

    file: str
    top: tuple[tuple[str, float], ...] = ()
    error: str = ""

    @staticmethod
    def from_json(values: dict[str, Any]) -> Prediction:
        top = tuple((name, probability) for name, probability in values["top"])
        return Prediction(values["file"], top, values["error"])


def find_files(patterns: Sequence[str]) -> list[str]:
    """Return the named files, all images in named folders, and matches of globs, each once."""
    found: dict[str, None] = {}
    for pattern in patterns:
        exists = os.path.exists(pattern)
        matches = [pattern] if exists else sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise UserError(
                f"there is no {pattern}; give images, folders or globs such as 'photos/*.jpg'"
            )
        for match in matches:
            files = _images_in(match) if os.path.isdir(match) else [match]
            if not files and match == pattern:
                raise UserError(f"there is no image in {match} ({', '.join(ENDINGS)})")
            found |= dict.fromkeys(files)
    return list(found)


def _images_in(folder: str) -> list[str]:
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        images = [name for name in names if name.lower().endswith(ENDINGS) and name[0] != "."]
        files += [os.path.join(parent, name) for name in sorted(images)]
    return files


def answer(job: Job, request: PredictRequest, send: Send) -> dict[str, Any]:
    """Predict files in a worker: several batches at a time, sent in the order of the files."""
    from paceline.engines import devices
    from paceline.results.predictor import load_predictor

    files = request.files
    # `in_a_worker` has asked whether the code is trusted
    predictor = load_predictor(job.run.run_dir, request.checkpoint, True, request.views)
    size, faults = predictor.batch_size, 0

    def predict(start: int) -> list[Prediction]:
        return _predict_files(predictor, files[start : start + size], request.top)

    with ThreadPoolExecutor(devices.configure_inference(job.experiment)) as pool:
        for predictions in pool.map(predict, range(0, len(files), size)):
            faults += sum(bool(prediction.error) for prediction in predictions)
            send(Predictions([vars(prediction) for prediction in predictions]))
    return {"step": predictor.step, "count": len(files) - faults, "faults": faults}


def _predict_files(predictor: Predictor, files: Sequence[str], top: int) -> list[Prediction]:
    contents, unread = [], {}
    for index, file in enumerate(files):
        try:
            contents.append(_read(file))
        except OSError as error:
            contents.append(b"")
            unread[index] = f"cannot be read: {error.strerror or error}"
    probabilities, faults = predictor.try_predict(contents)
    faults |= unread
    predictions = []
    for index, (file, row) in enumerate(zip(files, probabilities, strict=True)):
        best = (-row).argsort(kind="stable")[:top]
        classes = tuple((predictor.classes[k], float(row[k])) for k in best)
        failed = index in faults
        predictions.append(
            Prediction(file, error=faults[index]) if failed else Prediction(file, classes)
        )
    return predictions


def _read(file: str) -> bytes:
    """Return a file's content; nothing if it is not a regular file: reading a pipe would wait."""
    if not os.path.isfile(file):
        return b""
    with open(file, "rb", buffering=0) as opened:
        return opened.readall()
