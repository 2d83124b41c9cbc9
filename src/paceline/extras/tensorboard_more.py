"""What TensorBoard shows on request: distributions of the weights, images, TensorFlow's profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.job import Job
from paceline.maths.metrics import BlockResult, EvalResult
from paceline.storage.files import explained

if TYPE_CHECKING:
    from paceline.chief import ChiefRun
    from paceline.loop import Action


def load_histograms(job: Job) -> Callable[[ChiefRun], list[Action]]:
    """Return the function that builds the action of `--histograms`."""
    return lambda chief: [Histograms(chief)]


class Histograms:
    """An action that writes the distribution of each variable at every checkpoint.

    It begins with the images of the first step, as the model gets them.
    """

    def __init__(self, chief: ChiefRun) -> None:
        import tensorflow as tf

        self._chief = chief
        # a folder of its own, because TensorBoard reads the files of a folder one after another
        self._writer = tf.summary.create_file_writer(str(chief.folder.events / "weights"))
        first = tf.constant(0, tf.int64)
        images = chief.core.phases[0].batch(first, first).images
        low = tf.reduce_min(images, [1, 2, 3], keepdims=True)
        high = tf.reduce_max(images, [1, 2, 3], keepdims=True)
        with self._writer.as_default(chief.first_step):
            stretched = (images - low) / tf.maximum(high - low, 1e-6)
            tf.summary.image("images", stretched, max_outputs=25)

    def __call__(self, block: BlockResult, evaluation: EvalResult | None) -> None:
        import tensorflow as tf

        core = self._chief.core
        if not core.plan.saves_at(block.step):
            return
        vectors = self._chief.engine.state().vectors
        with explained("write", self._chief.folder.events), self._writer.as_default(block.step):
            for vector, name, numbers, _ in core.layout.pieces():
                if vector in ("params", "stats"):
                    tf.summary.histogram(name, vectors[vector][numbers])

    def close(self) -> None:
        self._writer.close()


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
