"""What the page shows of a run's mistakes: the confusion matrix, its largest cells, and images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.results.report.run_data import RunData, SavedEvaluation

TABLE_CLASSES = 20
"""A confusion matrix of more classes is an image instead of a table."""
FREQUENT = 10
"""How many of the most frequent mistakes the page lists."""


@dataclass(frozen=True)
class Cell:
    """A count of the matrix with the CSS class and the shade of its background."""

    count: int
    kind: str
    shade: float


@dataclass(frozen=True)
class Image:
    """An image inside the page, as a data URL."""

    url: str
    width: int
    height: int


@dataclass(frozen=True)
class Mistake:
    index: int
    label: str
    prediction: str
    probability: float
    image: Image


@dataclass(frozen=True)
class Confusion:
    """The last evaluation of a run. The matrix is either `rows` or, for many classes, `heat`."""

    step: int
    split: str
    count: int
    correct: int
    classes: list[str]
    rows: list[tuple[list[Cell], float | None]]
    """For each class its cells, and the share of its examples that are predicted correctly."""
    heat: Image | None
    frequent: list[tuple[str, str, int, float]]
    """True class, predicted class, how often, and the share of the true class."""
    worst: list[Mistake]


def build_confusion(run: RunData, max_images: int) -> Confusion | None:
    """Return what the page shows of a run's last evaluation; None if the folder has none."""
    evaluation = run.evaluation
    if evaluation is None or not len(evaluation.examples.labels):
        return None
    examples = evaluation.examples
    size = max(len(run.classes), 1 + max(examples.labels.max(), examples.predictions.max()))
    classes = [*run.classes, *(str(i) for i in range(len(run.classes), size))]
    matrix = examples.confusion(size)
    small = size <= TABLE_CLASSES
    return Confusion(
        step=evaluation.step,
        split=evaluation.split,
        count=len(examples.labels),
        correct=int(np.trace(matrix)),
        classes=classes,
        rows=_rows(matrix) if small else [],
        heat=None if small else _heat(matrix),
        frequent=list(_frequent(matrix, classes)),
        worst=list(_worst(evaluation, classes, max_images)),
    )


def _without_diagonal(matrix: np.ndarray) -> np.ndarray:
    return matrix * (1 - np.eye(len(matrix), dtype=int))


def _rows(matrix: np.ndarray) -> list[tuple[list[Cell], float | None]]:
    """Shade correct predictions by their share of the row, mistakes by the largest mistake."""
    largest = max(1, _without_diagonal(matrix).max())
    rows = []
    for i, counts in enumerate(matrix):
        total = counts.sum()
        shades = counts / largest
        shades[i] = counts[i] / max(1, total)
        cells = [_cell(int(n), i == j, shades[j]) for j, n in enumerate(counts)]
        rows.append((cells, counts[i] / total if total else None))
    return rows


def _cell(count: int, correct: bool, shade: float) -> Cell:
    if not count:
        return Cell(0, "none", 0.0)
    kind = "right" if correct else "wrong"
    if shade > 0.55:  # on a shade between 0.5 and 1 neither dark nor light digits are readable
        return Cell(count, f"{kind} strong", 1.0)
    return Cell(count, kind, 0.5 * shade)


def _heat(matrix: np.ndarray) -> Image:
    """Draw a pixel for each pair of classes, darker the larger its share of the row."""
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    return _encode((255 * (1 - np.sqrt(shares))).astype(np.uint8)[:, :, None].repeat(3, axis=2))


def _frequent(matrix: np.ndarray, classes: Sequence[str]) -> Iterator[tuple[str, str, int, float]]:
    wrong = _without_diagonal(matrix)
    for index in np.argsort(-wrong, axis=None, kind="stable")[:FREQUENT]:
        i, j = divmod(int(index), len(matrix))
        if wrong[i, j]:
            yield classes[i], classes[j], int(wrong[i, j]), wrong[i, j] / matrix[i].sum()


def _worst(evaluation: SavedEvaluation, classes: Sequence[str], most: int) -> Iterator[Mistake]:
    examples = evaluation.examples
    for index, image in list(zip(evaluation.worst, evaluation.images, strict=False))[:most]:
        label, prediction = examples.labels[index], examples.predictions[index]
        probability = float(examples.probabilities[index])
        yield Mistake(index, classes[label], classes[prediction], probability, _encode(image))


def _encode(pixels: np.ndarray) -> Image:
    """Return uint8 [height, width, channels] as PNG, or as JPEG for photos where it is smaller."""
    from PIL import Image as Pillow

    height, width, channels = pixels.shape
    kind = "PNG" if max(height, width) <= 48 or height > 96 else "JPEG"
    buffer = io.BytesIO()
    picture = Pillow.fromarray(pixels.squeeze(2) if channels == 1 else pixels)
    picture.save(buffer, kind, quality=85)
    data = base64.b64encode(buffer.getvalue()).decode()
    return Image(f"data:image/{kind.lower()};base64,{data}", width, height)
