"""What each section of the page shows: charts, notes, rows, mistakes, and values as text.

The templates only lay it out.
"""

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.experiment.fields import flatten
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.report.charts import Chart, Line
from paceline.extras.report.run_data import Points, RunData

MISSING = "–"
TABLE_CLASSES = 20
"""The confusion matrix of more classes is not shown, only the most frequent mistakes."""
FREQUENT = 10
"""How many of the most frequent mistakes the page lists."""
DARKEST = 0.27
"""Opacity of the darkest cells, on which digits are readable."""


def letter(index: int, count: int) -> str:
    """Return the short name of a run among several: A, B ... Z, A2 ...; a single run has none."""
    if count == 1:
        return ""
    return chr(65 + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def percent(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{100 * value:.{digits}f} %"


def whole_percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def thousands(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def duration(minutes: float) -> str:
    seconds = round(60 * minutes)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds // 60 % 60} min"


def setting(value: Any) -> str:
    """Return the value of a setting as people write it."""
    if isinstance(value, list):
        return ", ".join(setting(each) for each in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return MISSING if value in ("", None) else str(value)


FILTERS = (percent, number, thousands, duration, setting)
"""Functions that the templates use."""

Rows = dict[str, list[Any]]
"""A name, and its value in each run."""
MEASURES: tuple[tuple[str, Callable[[float], str], float], ...] = (
    ("Loss", number, math.inf),
    ("Accuracy", whole_percent, 1.0),
)
"""Title, a function that shows a value, and the largest value."""


def same_bits(runs: Sequence[RunData]) -> list[str]:
    """Return a note for each group of finished runs with the same final state."""
    by_digest: dict[str, list[str]] = {}
    for i, run in enumerate(runs):
        if run.finished and run.digest:
            by_digest.setdefault(run.digest, []).append(letter(i, len(runs)))
    groups = [names for names in by_digest.values() if len(names) > 1]
    return [f"{', '.join(names[:-1])} and {names[-1]} ended with the same bits" for names in groups]


def learning_charts(runs: Sequence[RunData]) -> list[Chart]:
    """Draw one run with its train and test curves together, several runs in charts of each."""
    charts = []
    for title, show, most in MEASURES:
        name = title.lower()
        train = [run.curve(name) for run in runs]
        held_out = [run.curve(f"{run.split}_{name}") for run in runs]
        if len(runs) == 1:
            lines = [Line("train", train[0], 1), Line(runs[0].split, held_out[0], 0, marked=True)]
            charts.append(Chart(title, lines, "epoch", show, most=most))
        else:
            splits = "/".join(dict.fromkeys(run.split for run in runs))
            lines = _lines(held_out, marked=True)
            charts.append(Chart(f"{title}, {splits}", lines, "epoch", show, most=most))
            charts.append(Chart(f"{title}, train", _lines(train), "epoch", show, most=most))
    return charts


def rate_charts(runs: Sequence[RunData]) -> list[Chart]:
    """Draw learning rate, speed and, if there is any, the staleness of gradients."""
    rates = _lines([run.curve("learning_rate") for run in runs])
    speeds = _lines([run.speeds() for run in runs])
    stale = [run.curve("staleness_mean") for run in runs]
    events = [
        (minute, f"{letter(i, len(runs))} {text}".strip())
        for i, run in enumerate(runs)
        for _, minute, text in run.events()
    ]
    of_speed = ("Images per second", speeds, "minutes of training", thousands)
    charts = [
        Chart("Learning rate", rates, "epoch", number, from_zero=True),
        Chart(*of_speed, from_zero=True, events=events),
    ]
    if any(stale):
        charts.append(Chart("Mean staleness", _lines(stale), "epoch", number, from_zero=True))
    return charts


def _lines(curves: Sequence[Points], marked: bool = False) -> list[Line]:
    return [Line(letter(i, len(curves)), points, i, marked) for i, points in enumerate(curves)]


def event_notes(runs: Sequence[RunData]) -> list[str]:
    """Describe each run's starts and events in words."""
    return [
        f"{letter(i, len(runs))} step {step:,} ({duration(minute)}): {text}".strip()
        for i, run in enumerate(runs)
        for step, minute, text in run.events()
    ]


def different_settings(runs: Sequence[RunData]) -> Rows:
    """Return what differs between the runs, or for a single run from its recipe."""
    compared = [run.settings for run in runs]
    if len(runs) == 1:
        compared.append(flatten(get_recipe(runs[0].recipe, runs[0].settings["data.dir"]).to_json()))
    rows = side_by_side(compared).items()
    return {name: each[: len(runs)] for name, each in rows if each != each[:1] * len(each)}


def machine_facts(runs: Sequence[RunData]) -> Rows:
    """Return place, hardware, versions and sizes of the data at each run's last start."""
    return side_by_side([_facts(run) for run in runs])


def side_by_side(facts: Sequence[Mapping[str, Any]]) -> Rows:
    """Return every name with its value in each run."""
    names = dict.fromkeys(name for each in facts for name in each)
    return {name.replace("_", "-"): [each.get(name) for each in facts] for name in names}


def _facts(run: RunData) -> dict[str, str]:
    last = run.start_records[-1] if run.start_records else {}
    where = {name: last.get(name) for name in ("place", "workers")} | (last.get("machine") or {})
    sizes = {f"{n} images": f"{size:,}" for n, size in run.data.items() if isinstance(size, int)}
    known = {str(name): str(value) for name, value in where.items() if value is not None}
    return known | (last.get("versions") or {}) | sizes


class Mistake(NamedTuple):
    """An image with a wrong prediction."""

    number: int
    label: str
    prediction: str
    probability: float
    url: str


class Confusion:
    """The predictions of a run's last evaluation, which must exist."""

    def __init__(self, run: RunData) -> None:
        assert run.evaluation is not None
        self.evaluation = run.evaluation
        examples = run.evaluation.examples
        size = max(len(run.classes), 1 + max(examples.labels.max(), examples.predictions.max()))
        self.classes = [*run.classes, *(str(i) for i in range(len(run.classes), size))]
        self.matrix = examples.confusion(size)
        self.fits_table = size <= TABLE_CLASSES
        self.count = len(examples.labels)
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
            cells = [
                (int(count), ("right" if i == j else "wrong") if count else "none", DARKEST * shade)
                for j, (count, shade) in enumerate(zip(counts, shades, strict=True))
            ]
            rows.append((self.classes[i], cells, correct))
        return rows

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
        examples, names = self.evaluation.examples, self.classes
        return [
            Mistake(
                number=index,
                label=names[examples.labels[index]],
                prediction=names[examples.predictions[index]],
                probability=float(examples.probabilities[index]),
                url=_data_url(pixels),
            )
            for index, pixels in zip(
                self.evaluation.worst[:most], self.evaluation.images, strict=False
            )
        ]


def _data_url(pixels: np.ndarray) -> str:
    """Return uint8 [height, width, channels] as a PNG, or as a JPEG if it is large."""
    from PIL import Image

    kind = "PNG" if max(pixels.shape) <= 48 else "JPEG"
    buffer = io.BytesIO()
    image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    image.save(buffer, kind, quality=85)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{data}"
