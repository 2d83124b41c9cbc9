"""A run's mistakes as the page shows them: the confusion matrix, its largest cells, and images."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import numpy as np

from paceline.extras.report.run_data import RunData
from paceline.results.scores import Scores, calibration_error, class_scores, macro_scores

TABLE_CLASSES = 20
"""The confusion matrix of more classes is not shown, only the most frequent mistakes."""
FREQUENT = 10
"""How many of the most frequent mistakes the page lists."""


class Mistake(NamedTuple):
    """An image with a wrong prediction."""

    number: int
    label: str
    prediction: str
    probability: float
    width: int
    height: int
    url: str


class Confusion:
    """The predictions of a run's last evaluation, which must exist."""

    def __init__(self, run: RunData) -> None:
        assert run.evaluation is not None
        self.evaluation = run.evaluation
        labels, predictions = run.evaluation.examples.labels, run.evaluation.examples.predictions
        size = max(len(run.classes), 1 + max(labels.max(), predictions.max()))
        self.classes = [*run.classes, *(str(i) for i in range(len(run.classes), size))]
        self.matrix = run.evaluation.examples.confusion(size)
        self.fits_table = size <= TABLE_CLASSES
        self.count = len(labels)
        self.correct = int(np.trace(self.matrix))
        self._wrong = self.matrix * (1 - np.eye(size, dtype=int))

    def rows(self) -> list[tuple[str, list[tuple[int, str, float]], float | None]]:
        """Return for each class its name, its cells, and the share predicted correctly.

        A cell has a count, a CSS class and a shade: for correct predictions the share of the row,
        for mistakes the share of the largest mistake.
        """
        rows = []
        for i, counts in enumerate(self.matrix):
            correct = counts[i] / counts.sum() if counts.sum() else None
            shades = counts / max(1, self._wrong.max())
            shades[i] = correct or 0.0
            kinds = ["right" if i == j else "wrong" for j in range(len(counts))]
            cells = [_cell(*cell) for cell in zip(counts.tolist(), kinds, shades, strict=True)]
            rows.append((self.classes[i], cells, correct))
        return rows

    def scores(self) -> list[tuple[str, Scores]]:
        """Return precision, recall and F1 of each class, and at the end their means."""
        scores = class_scores(self.matrix)
        return [*zip(self.classes, scores, strict=True), ("macro", macro_scores(scores))]

    def calibration_error(self) -> float:
        """Return the expected calibration error of the predictions."""
        examples = self.evaluation.examples
        return calibration_error(examples.labels == examples.predictions, examples.probabilities)

    def frequent(self) -> list[tuple[str, str, int, float]]:
        """Return the most frequent mistakes: class, prediction, count and share of the class."""
        largest = np.argsort(-self._wrong, axis=None, kind="stable")[:FREQUENT]
        pairs = [divmod(int(index), len(self.matrix)) for index in largest]
        return [
            (self.classes[i], self.classes[j], count, count / self.matrix[i].sum())
            for i, j in pairs
            if (count := int(self._wrong[i, j]))
        ]

    def worst(self, most: int) -> list[Mistake]:
        """Return the images that the model was most sure of, and wrong."""
        examples = self.evaluation.examples
        pairs = list(zip(self.evaluation.worst, self.evaluation.images, strict=False))[:most]
        return [
            Mistake(
                index,
                self.classes[examples.labels[index]],
                self.classes[examples.predictions[index]],
                float(examples.probabilities[index]),
                pixels.shape[1],
                pixels.shape[0],
                _data_url(pixels),
            )
            for index, pixels in pairs
        ]


def _cell(count: int, kind: str, shade: float) -> tuple[int, str, float]:
    if not count:
        return 0, "none", 0.0
    if shade > 0.55:  # on shades between 0.5 and 1 neither dark nor light digits are readable
        return count, f"{kind} strong", 1.0
    return count, kind, 0.5 * shade


def _data_url(pixels: np.ndarray) -> str:
    """Return uint8 [height, width, channels] as a PNG, or as a JPEG if it is large."""
    from PIL import Image

    kind = "PNG" if max(pixels.shape) <= 48 else "JPEG"
    buffer = io.BytesIO()
    image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    image.save(buffer, kind, quality=85)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{data}"
