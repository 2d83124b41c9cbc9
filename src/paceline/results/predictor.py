"""`load_predictor`: the model of a run for images in memory. Bytes of files in, probabilities out.

Image files by their names belong to `predict_files`. TensorFlow is imported by the functions only,
after its settings are made.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.experiment.data import Views
from paceline.results.image_bytes import PNG, as_jpeg_or_png, png_size, to_png
from paceline.results.in_worker import check_trust
from paceline.results.trained_model import TrainedModel, load_trained_model, to_probabilities
from paceline.run_folder.finding import existing_run


def load_predictor(
    run: str | Path, checkpoint: str = "best", trust_code: bool = False, views: Views = "none"
) -> Predictor:
    """Load the model of a run from its best or last checkpoint, or from that of a step.

    `best` is the last checkpoint if no validation split chose one. TensorFlow gets the settings
    of the training, unless this process has used it before. A run with a model of its own needs
    `trust_code`, because its config.json names the code. With `views` mirror or shifts, a
    prediction is the mean over several versions of the image.
    """
    from PIL import Image

    # `as_jpeg_or_png` refuses images that are too large, with its own message
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    folder = existing_run(run)
    check_trust(folder, "predict", trust_code)
    return Predictor(load_trained_model(folder, checkpoint), views)


class Predictor:
    """A model with its weights. `predict` may be called from several threads at a time."""

    def __init__(self, trained: TrainedModel, views: Views = "none") -> None:
        import tensorflow as tf

        from paceline.maths.replica import choose_eval_batch_size

        self.classes = trained.classes
        self.step = trained.state.step
        self.batch_size = choose_eval_batch_size(trained.image_shape)
        self._gives_logits = trained.gives_logits
        self._prepare_any = _build_prepare(trained, fitting=False)
        self._prepare_fitting = _build_prepare(trained, fitting=True)
        self._classify = _build_classify(trained, views)
        height, width, _ = trained.stored_shape or (0, 0, 0)
        self._fitting_size = png_size(width, height)
        self._weights = tf.constant(trained.params), tf.constant(trained.stats)

    def predict(self, encoded: Sequence[bytes]) -> np.ndarray:
        """Return probabilities, float32 [n, classes], of images as files contain them.

        Raises UserError if one of them is not an image.
        """
        probabilities, faults = self.try_predict(encoded)
        for index, fault in faults.items():
            raise UserError(f"image {index + 1} of {len(encoded)} {fault}")
        return probabilities

    def try_predict(self, encoded: Sequence[bytes]) -> tuple[np.ndarray, dict[int, str]]:
        """Return probabilities, and by index what is wrong with the images that have none (NaN)."""
        outputs = np.full((len(encoded), len(self.classes)), np.nan, np.float32)
        faults: dict[int, str] = {}
        for start in range(0, len(encoded), self.batch_size):
            batch = dict(enumerate(encoded[start : start + self.batch_size], start))
            valid, images = self._prepare_valid(batch, faults)
            if valid:
                outputs[valid] = self.outputs(images)
        return to_probabilities(outputs, self._gives_logits), faults

    def outputs(self, images: Any) -> np.ndarray:
        """Return the model's outputs for at most `batch_size` prepared images.

        The batch is padded to the shape that training's own evaluation has, for the same bits.
        """
        import tensorflow as tf

        count = int(images.shape[0])
        if count < self.batch_size:
            images = tf.pad(images, [[0, self.batch_size - count], [0, 0], [0, 0], [0, 0]])
        return np.asarray(self._classify(*self._weights, images))[:count]

    def _prepare_valid(
        self, batch: dict[int, bytes], faults: dict[int, str]
    ) -> tuple[list[int], Any]:
        """Prepare a batch at once; only if that fails, check its images one by one."""
        import tensorflow as tf

        valid = _convert(as_jpeg_or_png, batch, faults)
        try:
            return list(valid), self._prepare(list(valid.values())) if valid else None
        except tf.errors.InvalidArgumentError:
            valid = _convert(self._decodable, valid, faults)
            return list(valid), self._prepare(list(valid.values())) if valid else None

    def _prepare(self, encoded: list[bytes]) -> Any:
        """Return JPEGs and PNGs as the model's input, faster if all are PNGs of the stored size."""
        import tensorflow as tf

        size = self._fitting_size
        fitting = all(data.startswith(PNG) and data[16:24] == size for data in encoded)
        return (self._prepare_fitting if fitting else self._prepare_any)(tf.constant(encoded))

    def _decodable(self, data: bytes) -> bytes:
        import tensorflow as tf

        try:
            self._prepare([data])
            return data
        except tf.errors.InvalidArgumentError:
            return to_png(data)


def _convert(
    function: Callable[[bytes], bytes], batch: dict[int, bytes], faults: dict[int, str]
) -> dict[int, bytes]:
    """Apply the function to each image; the reasons of those that fail go to `faults`."""
    converted = {}
    for index, data in batch.items():
        try:
            converted[index] = function(data)
        except ValueError as error:
            faults[index] = str(error)
    return converted


def _build_prepare(trained: TrainedModel, fitting: bool) -> Callable[..., Any]:
    """Build: encoded images -> the model's input; `fitting` if all have the stored shape."""
    import tensorflow as tf

    from paceline.formats.encoded.prepare import prepare_encoded

    def prepare(encoded: tf.Tensor) -> tf.Tensor:
        return prepare_encoded(trained.experiment, trained.stored_shape, encoded, fitting)

    strings = tf.TensorSpec([None], tf.string)
    function: Callable[..., Any]
    function = tf.function(prepare, autograph=False, input_signature=[strings])
    return function


def _build_classify(trained: TrainedModel, views: Views) -> Callable[..., Any]:
    """Build: (params, stats, prepared images) -> the model's outputs."""
    import tensorflow as tf

    from paceline.maths.replica import opaque
    from paceline.maths.view_average import mean_over_views

    def classify(params: tf.Tensor, stats: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        def call(seen: tf.Tensor) -> tf.Tensor:
            return trained.template.call(params, stats, seen, training=False)[0]

        return mean_over_views(call, images, views)

    return opaque(classify)
