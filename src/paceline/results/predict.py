"""`paceline predict` and `load_predictor`: a run's model, from bytes of files to probabilities.

TensorFlow is imported by the functions only, after its settings are made.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.errors import UserError
from paceline.experiment.data import Views
from paceline.experiment.fields import Json
from paceline.formats.image_list import ENDINGS, walk_images
from paceline.job import Job
from paceline.messages import Predictions, Send
from paceline.requests import PredictRequest
from paceline.results.image_bytes import PNG, find_fault, png_size
from paceline.results.in_worker import check_trust
from paceline.results.trained_model import (
    TrainedModel,
    configure_inference,
    load_trained_model,
    to_probabilities,
)
from paceline.run_folder.finding import existing_run

if TYPE_CHECKING:
    import tensorflow as tf


DAMAGED = "cannot be decoded: it is damaged, or of a kind that training does not read"


@dataclass(frozen=True)
class Prediction:
    """Classes with their probabilities, the highest first, or what is wrong with the file."""

    file: str
    top: tuple[tuple[str, float], ...] = ()
    error: str = ""

    @staticmethod
    def from_json(values: Json) -> Prediction:
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
            files = [*walk_images(match)] if os.path.isdir(match) else [match]
            if not files and match == pattern:
                raise UserError(f"there is no image in {match} ({', '.join(ENDINGS)})")
            found |= dict.fromkeys(files)
    return list(found)


def answer(job: Job, request: PredictRequest, send: Send) -> Json:
    """Predict files in a worker: several batches at a time, sent in the order of the files."""
    files = request.files
    # `in_a_worker` has asked whether the code is trusted
    predictor = load_predictor(job.run.run_dir, request.checkpoint, True, request.views)
    size, faults = predictor.batch_size, 0

    def predict(start: int) -> list[Prediction]:
        return _predict_files(predictor, files[start : start + size], request.top)

    with ThreadPoolExecutor(configure_inference(job.experiment)) as pool:
        for predictions in pool.map(predict, range(0, len(files), size)):
            faults += sum(bool(prediction.error) for prediction in predictions)
            send(Predictions([vars(prediction) for prediction in predictions]))
    return {"step": predictor.step, "count": len(files) - faults, "faults": faults}


def _predict_files(predictor: Predictor, files: Sequence[str], top: int) -> list[Prediction]:
    contents, unread = [], {}
    for index, file in enumerate(files):
        contents.append(b"")
        try:
            if os.path.isfile(file):  # reading a pipe would wait
                contents[index] = Path(file).read_bytes()
        except OSError as error:
            unread[index] = f"cannot be read: {error.strerror or error}"
    probabilities, faults = predictor.try_predict(contents)
    faults |= unread
    best = (-probabilities).argsort(axis=1, kind="stable")[:, :top]
    return [
        Prediction(file, error=faults[index])
        if index in faults
        else Prediction(file, tuple((predictor.classes[k], float(row[k])) for k in best[index]))
        for index, (file, row) in enumerate(zip(files, probabilities, strict=True))
    ]


def load_predictor(
    run: str | Path, checkpoint: str = "best", trust_code: bool = False, views: Views = "none"
) -> Predictor:
    """Load the model of a run from its best checkpoint, its last one or that of a step.

    `best` is the last checkpoint if no validation split chose one. TensorFlow gets the settings
    of the training, unless this process has used it before. A run with its own model code needs
    `trust_code`. With `views` mirror or shifts, a prediction is the mean over several versions of
    the image."""
    from PIL import Image

    # `find_fault` refuses images that are too large, with its own message
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    folder = existing_run(run)
    check_trust(folder, "predict", trust_code)
    return Predictor(load_trained_model(folder, checkpoint), views)


class Predictor:
    """A model with its weights. `predict` may be called from several threads at a time."""

    def __init__(self, trained: TrainedModel, views: Views = "none") -> None:
        import tensorflow as tf

        from paceline.formats.encoded.prepare import prepare_encoded
        from paceline.maths.replica import choose_eval_batch_size, opaque
        from paceline.maths.view_average import mean_over_views

        self.classes = trained.classes
        self.step = trained.state.step
        self.batch_size = choose_eval_batch_size(trained.image_shape)
        self._gives_logits = trained.gives_logits
        height, width, _ = trained.stored_shape or (0, 0, 0)
        self._fitting_size = png_size(width, height)
        self._weights = tuple(tf.constant(each) for each in trained.weights)

        prepare = partial(prepare_encoded, trained.experiment, trained.stored_shape)
        strings = [tf.TensorSpec([None], tf.string)]
        self._prepare_images = {
            fitting: tf.function(partial(prepare, fitting=fitting), strings, autograph=False)
            for fitting in (False, True)
        }

        def classify(params: tf.Tensor, stats: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
            def call(seen: tf.Tensor) -> tf.Tensor:
                return trained.template.call(params, stats, seen, training=False)[0]

            return mean_over_views(call, images, views)

        self._classify = opaque(classify)

    def predict(self, encoded: Sequence[bytes]) -> np.ndarray:
        """Return probabilities, float32 [n, classes], of images as files contain them. Raises
        UserError if one of them is not an image."""
        probabilities, faults = self.try_predict(encoded)
        for index, fault in faults.items():
            raise UserError(f"image {index + 1} of {len(encoded)} {fault}")
        return probabilities

    def try_predict(self, encoded: Sequence[bytes]) -> tuple[np.ndarray, dict[int, str]]:
        """Return probabilities, and by index what is wrong with the images that have none (NaN)."""
        import tensorflow as tf

        outputs = np.full((len(encoded), len(self.classes)), np.nan, np.float32)
        faults: dict[int, str] = {}
        for start in range(0, len(encoded), self.batch_size):
            batch = dict(enumerate(encoded[start : start + self.batch_size], start))
            valid, images = self._prepare_valid(batch, faults)
            if valid:
                # The shape that training's own evaluation has, for the same bits.
                missing = self.batch_size - len(valid)
                padded = tf.pad(images, [[0, missing], *[[0, 0]] * 3]) if missing else images
                found = self._classify(*self._weights, padded)
                outputs[valid] = np.asarray(found)[: len(valid)]
        return to_probabilities(outputs, self._gives_logits), faults

    def _prepare_valid(
        self, batch: dict[int, bytes], faults: dict[int, str]
    ) -> tuple[list[int], tf.Tensor | None]:
        """Prepare a batch at once; only if that fails, look for the images that are damaged."""
        import tensorflow as tf

        faults |= {index: fault for index, data in batch.items() if (fault := find_fault(data))}
        valid = {index: data for index, data in batch.items() if index not in faults}
        try:
            return list(valid), self._prepare(list(valid.values())) if valid else None
        except tf.errors.InvalidArgumentError:
            valid = {index: data for index, data in valid.items() if self._is_decodable(data)}
            faults |= dict.fromkeys(batch.keys() - valid.keys() - faults.keys(), DAMAGED)
            return list(valid), self._prepare(list(valid.values())) if valid else None

    def _is_decodable(self, data: bytes) -> bool:
        import tensorflow as tf

        try:
            self._prepare([data])
        except tf.errors.InvalidArgumentError:
            return False
        return True

    def _prepare(self, encoded: list[bytes]) -> tf.Tensor:
        """Return images as the model's input, faster if all are PNGs of the stored size."""
        import tensorflow as tf

        size = self._fitting_size
        fitting = all(data.startswith(PNG) and data[16:24] == size for data in encoded)
        return self._prepare_images[fitting](tf.constant(encoded))
