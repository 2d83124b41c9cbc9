"""Predict pictures that lie in files: which files are meant, what is said of each, and the work itself in batches side by side.

Without TensorFlow, but for `serve`, which a worker process calls.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.config.job import Job
from paceline.errors import UserError
from paceline.messages import Predictions, Send

if TYPE_CHECKING:
    from paceline.results.predictor import Predictor

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""What is taken for a picture in a folder; a file that is named is tried whatever its ending."""


@dataclass(frozen=True)
class Prediction:
    """Of one file: classes with their probabilities, the likeliest first, or what is wrong with the file."""

    file: str
    top: tuple[tuple[str, float], ...] = ()
    error: str = ""

    @staticmethod
    def from_json(values: dict[str, Any]) -> Prediction:
        return Prediction(
            values["file"], tuple((name, share) for name, share in values["top"]), values["error"]
        )


def find_files(patterns: Sequence[str]) -> list[str]:
    """Files as they were named, pictures anywhere in folders, and what globs match; each once, in this order."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = (
            [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        )
        if not matches:
            raise UserError(
                f"there is no {pattern}; give pictures, folders or globs such as 'photos/*.jpg'"
            )
        for match in matches:
            files = _pictures_in(match) if os.path.isdir(match) else [match]
            if not files and match == pattern:
                raise UserError(f"there is no picture in {match} ({', '.join(ENDINGS)})")
            found |= dict.fromkeys(files)
    return list(found)


def _pictures_in(folder: str) -> list[str]:
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [
            os.path.join(place, n)
            for n in sorted(names)
            if n.lower().endswith(ENDINGS) and not n.startswith(".")
        ]
    return files


def serve(job: Job, send: Send) -> dict[str, Any]:
    """A worker's part of `predict`: batches side by side, told in the order of the files."""
    from paceline.results.predictor import load_predictor
    from paceline.worker import devices

    files, top = job.request["files"], job.request["top"]
    predictor = load_predictor(job.run.run_dir, job.request["checkpoint"])
    size, faults = predictor.batch_size, 0

    def predict(start: int) -> list[Prediction]:
        return _predict_files(predictor, files[start : start + size], top)

    starts = range(0, len(files), size)
    with ThreadPoolExecutor(devices.configure_inference(job.experiment)) as pool:
        for predictions in pool.map(predict, starts):
            faults += sum(bool(prediction.error) for prediction in predictions)
            send(Predictions([vars(prediction) for prediction in predictions]))
    return {"step": predictor.step, "count": len(files) - faults, "faults": faults}


def _read(file: str) -> bytes:
    """Nothing of what is no file: a pipe would be waited for."""
    if not os.path.isfile(file):
        return b""
    with open(file, "rb", buffering=0) as opened:
        return opened.readall()


def _predict_files(predictor: Predictor, files: Sequence[str], top: int) -> list[Prediction]:
    contents, unread = [], {}
    for index, file in enumerate(files):
        try:
            contents.append(_read(file))
        except OSError as error:
            contents.append(b"")
            unread[index] = f"cannot be read: {error.strerror or error}"
    probabilities, faults = predictor.predict_whole(contents)
    faults |= unread
    order = (-probabilities).argsort(axis=1, kind="stable")[:, :top]
    shares, names = np.take_along_axis(probabilities, order, axis=1).tolist(), predictor.classes
    return [
        Prediction(file, error=faults[i])
        if i in faults
        else Prediction(
            file,
            tuple((names[k], share) for k, share in zip(order[i].tolist(), shares[i], strict=True)),
        )
        for i, file in enumerate(files)
    ]
