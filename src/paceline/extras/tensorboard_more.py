"""What TensorBoard shows on request: distributions of the weights, images, TensorFlow's profile."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from paceline.experiment.fields import Json
from paceline.job import Job
from paceline.maths.metrics import BlockResult, EvalResult
from paceline.storage.files import explained

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.loop import Action


def load_histograms(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Return the function that builds the action of `--histograms`."""

    def build(chief: ChiefRun) -> list[Action]:
        chief.board.write(chief.first_step, {"tag": "images", "image": _first_images(chief)})

        def write(block: BlockResult, evaluation: EvalResult | None) -> None:
            if chief.core.plan.saves_at(block.step):
                vectors = chief.engine.state().vectors
                chief.board.write(
                    block.step,
                    *(
                        {"tag": name, "histo": _histogram(vectors[vector][numbers])}
                        for vector, name, numbers, shape in chief.core.layout.pieces()
                        if vector in ("params", "stats") and np.prod(shape)
                    ),
                )

        return [write]

    return build


def _histogram(values: np.ndarray) -> Json:
    exact = values.astype(np.float64)
    counts, edges = np.histogram(exact, bins=30)
    ends = {"min": exact.min(), "max": exact.max(), "num": exact.size}
    sums = {"sum": exact.sum(), "sum_squares": (exact**2).sum()}
    return ends | sums | {"bucket_limit": edges[1:], "bucket": counts}


def _first_images(chief: ChiefRun) -> Json:
    """Return images of the first step side by side, as the model gets them, stretched to 0-255."""
    import tensorflow as tf
    from PIL import Image

    first = tf.constant(0, tf.int64)
    images = chief.core.batch(first, first).images.numpy()[:25]
    low, high = images.min((1, 2, 3), keepdims=True), images.max((1, 2, 3), keepdims=True)
    stretched = ((images - low) / np.maximum(high - low, 1e-6) * 255).astype(np.uint8)
    row = np.concatenate(list(stretched), 1)
    content = io.BytesIO()
    Image.fromarray(row.squeeze()).save(content, "png")
    height, width, channels = row.shape
    size = {"height": height, "width": width, "colorspace": channels}
    return size | {"encoded_image_string": content.getvalue()}


class Profile:
    """An action that records TensorFlow's operations in the blocks from step `first` to `last`."""

    def __init__(self, chief: ChiefRun, first: int, last: int) -> None:
        self._folder, self._first, self._last = chief.folder.events, first, last
        self._is_on = False
        self._record(chief.first_step)

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        self._record(block.step)

    def _record(self, step: int) -> None:
        import tensorflow as tf

        if step >= self._last:
            self.close()
        elif step >= self._first and not self._is_on:
            tf.profiler.experimental.start(str(self._folder))
            self._is_on = True

    def close(self) -> None:
        """Write the profile, if one is being recorded."""
        import tensorflow as tf

        if self._is_on:
            self._is_on = False
            with explained("write", self._folder):
                tf.profiler.experimental.stop()


def load_profile(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Return the function that builds the action of `--profile`."""
    first, last = job.run.profile
    return lambda chief: [Profile(chief, first, last)]
