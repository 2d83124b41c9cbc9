"""An evaluation with every prediction, and its metrics: precision, recall, F1, calibration, top-k.

NumPy only.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.errors import UserError
from paceline.experiment.fields import Json
from paceline.maths.metrics import Examples
from paceline.results.shown import ShownAsTable

Array = npt.NDArray[Any]

BINS = 15
"""Bins of equal width for the expected calibration error (Guo et al. 2017)."""
NUMBERS = ("run_dir", "step", "split", "accuracy", "top5", "loss", "count")
"""Fields of an Evaluation that are in its JSON as they are."""


class Scores(NamedTuple):
    """How well a class is found, or the mean over classes; None where it is not defined."""

    precision: float | None
    """Of the examples predicted as the class, the share that are of it; None if none are."""
    recall: float | None
    """Of the examples of the class, the share that are predicted as it; None without examples."""
    f1: float | None
    """The harmonic mean of both; None if the class is neither a label nor a prediction."""


def class_scores(labels: Array, predictions: Array, num_classes: int) -> list[Scores]:
    """Return the scores of each class. A confusion matrix of 100,000 classes would take 75 GB."""
    correct, labelled, predicted = (
        np.bincount(each, minlength=num_classes).tolist()
        for each in (labels[labels == predictions], labels, predictions)
    )
    return [
        Scores(
            hits / guesses if guesses else None,
            hits / examples if examples else None,
            2 * hits / (examples + guesses) if examples + guesses else None,
        )
        for hits, examples, guesses in zip(correct, labelled, predicted, strict=True)
    ]


def most_mistaken(labels: Array, predictions: Array, num_classes: int) -> list[tuple[int, int]]:
    """Return each class with its most frequent wrong prediction, of equals the first."""
    wrong = labels != predictions
    codes = labels[wrong].astype(np.int64) * num_classes + predictions[wrong]
    pairs, counts = np.unique(codes, return_counts=True)
    pairs = pairs[np.lexsort((-counts, pairs // num_classes))]  # stable: the first of equals
    _, first = np.unique(pairs // num_classes, return_index=True)
    return [divmod(pair, num_classes) for pair in pairs[first].tolist()]


def macro_scores(scores: list[Scores]) -> Scores:
    """Return the mean of each score over the classes that are a label or a prediction. What is not
    defined counts as 0, as in scikit-learn."""
    seen = [score for score in scores if score.f1 is not None]
    if not seen:
        return Scores(None, None, None)
    sums = (sum(value or 0.0 for value in values) for values in zip(*seen, strict=True))
    return Scores(*(total / len(seen) for total in sums))


def calibration_error(correct: Array, probabilities: Array) -> float:
    """Return the expected calibration error of predictions with these probabilities.

    It is the mean distance between the probability of a prediction and the share of correct ones,
    over bins of the probability, weighted by their size.
    """
    edges = np.linspace(0, 1, BINS + 1)[1:-1]
    bins = np.digitize(probabilities, edges, right=True)
    gaps = np.asarray(correct, np.float64) - np.asarray(probabilities, np.float64)
    return float(np.abs(np.bincount(bins, weights=gaps, minlength=BINS)).sum() / len(gaps))


@dataclass(frozen=True)
class ClassScore:
    """The metrics of one class; see `Scores`. Its accuracy is its recall."""

    name: str
    count: int
    accuracy: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    mistaken_for: str
    """The most frequent wrong prediction; empty if there is none."""


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(ShownAsTable):
    """The evaluation of a checkpoint on a split. In a notebook, it is a table of the classes.

    `labels`, int32 [n], and `probabilities`, float32 [n, classes], are in the order of the split.
    """

    run_dir: str
    step: int
    split: str
    accuracy: float
    top5: float
    loss: float
    count: int
    classes: tuple[str, ...]
    labels: Array
    probabilities: Array

    def caption(self) -> str:
        """Return the metrics of the whole split."""
        where = f"{self.run_dir}, step {self.step:,}, {self.count:,} {self.split} images"
        return f"{where}: accuracy {self.accuracy:.4f}, top-5 {self.top5:.4f}, loss {self.loss:.4f}"

    def rows(self) -> list[dict[str, object]]:
        """Return the metrics of each class."""
        return [asdict(score) for score in self.per_class()]

    def _counted(self) -> tuple[Array, Array, int]:
        return self.labels, self.probabilities.argmax(axis=1), len(self.classes)

    def confusion(self) -> Array:
        """Return how often each class (row) is predicted as each class (column), int64."""
        labels, predictions, num_classes = self._counted()
        examples = Examples(labels.astype(np.int64), predictions, self.probabilities.max(axis=1))
        return examples.confusion(num_classes)

    def per_class(self) -> list[ClassScore]:
        """Return the metrics of each class."""
        instead = {each: self.classes[wrong] for each, wrong in most_mistaken(*self._counted())}
        counts = np.bincount(self.labels, minlength=len(self.classes)).tolist()
        rows = zip(self.classes, counts, class_scores(*self._counted()), strict=True)
        return [
            ClassScore(name, count, score.recall, *score, instead.get(number, ""))
            for number, (name, count, score) in enumerate(rows)
        ]

    def macro(self) -> Scores:
        """Return precision, recall and F1 as means over the classes, each class counted once."""
        return macro_scores(class_scores(*self._counted()))

    def calibration_error(self) -> float:
        """Return the expected calibration error of the predictions, in 15 bins."""
        correct = self.probabilities.argmax(axis=1) == self.labels
        return calibration_error(correct, self.probabilities.max(axis=1))

    def top_k(self, k: int) -> float:
        """Return the share of examples whose label is among the k most probable classes."""
        if not 1 <= k <= len(self.classes):
            raise UserError(f"top-k is {k}; it must be 1 to {len(self.classes)}")
        own = np.take_along_axis(self.probabilities, self.labels.astype(np.int64)[:, None], axis=1)
        return float(((self.probabilities > own).sum(axis=1) < k).mean())

    def to_json(self, top_k: Sequence[int] = ()) -> Json:
        """Return all metrics, including the top-k accuracy for each k, without single examples."""
        values = {name: getattr(self, name) for name in NUMBERS}
        values |= {"calibration_error": self.calibration_error(), "macro": self.macro()._asdict()}
        values |= {"top_k": {str(k): self.top_k(k) for k in top_k}} if top_k else {}
        return values | {"classes": self.rows()}
