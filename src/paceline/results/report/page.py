"""The page about one or several runs: what came out, the curves, what the model confuses, what the runs were and how they differ."""

from __future__ import annotations

import base64
import datetime
import io
from collections.abc import Sequence
from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from paceline.config.experiment import Experiment, flatten
from paceline.results.report.charts import Chart, Line, draw, sample
from paceline.results.report.html import Content, element, to_text
from paceline.results.report.story import Evaluation, Points, Story

TABLE_CLASSES = 20
"""A confusion matrix of more classes is a picture instead of a table."""
NO_NETWORK = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The browser itself keeps the page from asking anyone for anything, and from running a script."""


def build_page(stories: Sequence[Story], left_out: Sequence[str] = ()) -> str:
    """The whole page as text."""
    title = stories[0].name if len(stories) == 1 else f"{len(stories)} runs"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=NO_NETWORK),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title} · Paceline"),
        element("style", style()),
    )
    parts = [
        _header(title, stories),
        element("ul", [element("li", f"Left out: {line}") for line in left_out], class_="notes")
        if left_out
        else None,
        *_outcome(stories),
        _section("How it learned", _learning(stories)),
        _section("Rate and speed", _rates(stories)),
        _section("What it confuses", _confusions(stories)),
        _section("The experiment" if len(stories) == 1 else "What differs", _experiments(stories)),
        _section(
            "The numbers", [_numbers(i, story, len(stories)) for i, story in enumerate(stories)]
        ),
        _section("Versions and machine", _machines(stories)),
    ]
    body = element("body", element("main", parts, class_="paceline"))
    return "<!doctype html>\n" + to_text(element("html", head, body, lang="en"))


def build_fragment(story: Story) -> str:
    """A run's outcome and curves, for notebooks."""
    return to_text(
        element(
            "div",
            element("style", style()),
            _tiles(story),
            _learning([story]),
            class_="paceline fragment",
        )
    )


def style() -> str:
    return files("paceline.results.report").joinpath("style.css").read_text()


def _section(title: str, content: Element | Sequence[Element]) -> Element | None:
    if not isinstance(content, Element) and not content:
        return None
    return element("section", element("h2", title), content)


def _header(title: str, stories: Sequence[Story]) -> Element:
    kinds = list(dict.fromkeys(_kind(story) for story in stories))
    today = datetime.date.today().isoformat()
    return element(
        "header",
        element("p", "Paceline report", class_="kicker"),
        element("h1", title),
        element(
            "p", " · ".join([*kinds[:4], *(["…"] if len(kinds) > 4 else []), today]), class_="quiet"
        ),
    )


def _kind(story: Story) -> str:
    e = story.experiment
    model = e["model.build"] or f"ResNet-{e['model.depth']}"
    return f"{model} on {e['data.build'] or e['data.source']}"


def _outcome(stories: Sequence[Story]) -> list[Content]:
    if len(stories) == 1:
        return [_tiles(stories[0])]
    headings = ("", "run", "accuracy", "loss", "steps", "images/s", "time", "digest of the state")
    rows = []
    for i, story in enumerate(stories):
        cells: list[Content | list[Content]] = [
            [sample(i), letter(i, len(stories))],
            [
                f"{story.name} ",
                None if story.finished else element("span", "unfinished", class_="badge"),
            ],
            percent(_accuracy(story)),
            number(story.last(f"{story.split}_loss")),
            _steps(story),
            number(_speed(story), 0),
            duration(story.minutes[-1][1]),
            str(story.result.get("state_sha256") or "–")[:12],
        ]
        rows.append(element("tr", [element("td", cell) for cell in cells]))
    notes = [
        element("li", f"{letter(i, 9)}: {note}")
        for i, story in enumerate(stories)
        for note in story.notes
    ]
    notes += [element("li", line) for line in _same_bits(stories)]
    return [_table(headings, rows, "runs"), element("ul", notes, class_="notes") if notes else None]


def _same_bits(stories: Sequence[Story]) -> list[str]:
    """The runs that ended with the same state."""
    by_digest: dict[str, list[str]] = {}
    for i, story in enumerate(stories):
        if story.finished and (digest := story.result.get("state_sha256")):
            by_digest.setdefault(digest, []).append(letter(i, len(stories)))
    groups = [names for names in by_digest.values() if len(names) > 1]
    return [
        f"{' and '.join([', '.join(names[:-1]), names[-1]])} ended with the same bits"
        for names in groups
    ]


def _tiles(story: Story) -> Element:
    tiles = [
        (f"{story.split} accuracy", percent(_accuracy(story))),
        (f"{story.split} loss", number(story.last(f"{story.split}_loss"))),
        ("steps", _steps(story)),
        ("images per second", number(_speed(story), 0)),
        ("training time", duration(story.minutes[-1][1])),
    ]
    parts = [element("div", element("dt", name), element("dd", value)) for name, value in tiles]
    digest = story.result.get("state_sha256")
    return element(
        "div",
        None
        if story.finished
        else element("p", element("span", f"unfinished: step {_steps(story)}", class_="badge")),
        element("dl", parts, class_="tiles"),
        element("p", "Digest of the state: ", element("code", str(digest)), class_="digest quiet")
        if digest
        else None,
        element("ul", [element("li", note) for note in story.notes], class_="notes")
        if story.notes
        else None,
    )


def _steps(story: Story) -> str:
    return f"{story.step:,}" if story.finished else f"{story.step:,} of {story.total_steps:,}"


def _accuracy(story: Story) -> float | None:
    return story.last(f"{story.split}_accuracy")


def _speed(story: Story) -> float | None:
    """The result's, or else the median of the blocks."""
    speeds = [speed for _, speed in story.speeds()]
    return story.result.get("images_per_second") or (float(np.median(speeds)) if speeds else None)


def _learning(stories: Sequence[Story]) -> Element:
    """One run: train and test in one chart. Several: a chart for each, in which runs are compared."""
    several = len(stories) > 1
    charts = []
    for title, name, show, log in (
        ("Loss", "loss", number, True),
        ("Accuracy", "accuracy", whole_percent, False),
    ):
        train = [story.curve(name) for story in stories]
        held = [story.curve(f"{story.split}_{name}") for story in stories]
        if several:
            splits = "/".join(dict.fromkeys(story.split for story in stories))
            charts.append(
                Chart(f"{title}, {splits}", _lines(held, marked=True), "epoch", show, log)
            )
            charts.append(Chart(f"{title}, train", _lines(train), "epoch", show, log))
        else:
            lines = [Line("train", train[0], 1), Line(stories[0].split, held[0], 0, marked=True)]
            charts.append(Chart(title, lines, "epoch", show, log))
    return element("div", [draw(chart) for chart in charts], class_="charts")


def _rates(stories: Sequence[Story]) -> list[Element]:
    """Learning rate and speed, with every start, and with what happened in between."""
    count, events, notes = len(stories), list[tuple[float, str]](), list[str]()
    for i, story in enumerate(stories):
        name, attempts = letter(i, count), story.attempts()
        events += [
            (each.minute, f"{name} {each.who()}".strip())
            for each in attempts
            if each.step or count == 1
        ]
        events += [
            (minute, shorten(f"{name} {text}".strip(), 24))
            for _, minute, text in story.happenings()
        ]
        told = [
            f"at step {a.step:,} ({duration(a.minute)}) with {a.who()}"
            if a.step
            else f"with {a.who()}"
            for a in attempts
        ]
        notes += [f"{name} started {', again '.join(told)}.".strip().capitalize()] if told else []
        notes += [
            f"{name} step {step:,} ({duration(minute)}): {text}".strip()
            for step, minute, text in story.happenings()
        ]
    speeds = _lines([story.speeds() for story in stories])
    staleness = [story.curve("staleness_mean") for story in stories]
    charts = [
        Chart(
            "Learning rate",
            _lines([s.curve("learning_rate") for s in stories]),
            "epoch",
            number,
            from_zero=True,
        ),
        Chart(
            "Images per second",
            speeds,
            "minutes of training",
            thousands,
            from_zero=True,
            events=events,
        ),
        *(
            [Chart("Mean staleness", _lines(staleness), "epoch", number, from_zero=True)]
            if any(staleness)
            else []
        ),
    ]
    if notes:
        shown = element("ul", [element("li", note) for note in notes], class_="notes")
    else:
        shown = element("p", "When and with whom it started was not noted.", class_="quiet")
    return [element("div", [draw(chart) for chart in charts], class_="charts"), shown]


def _lines(curves: Sequence[Points], marked: bool = False) -> list[Line]:
    return [Line(letter(i, len(curves)), points, i, marked) for i, points in enumerate(curves)]


def _confusions(stories: Sequence[Story]) -> list[Element]:
    """For each run what the model said of the pictures of its last evaluation; in one line the runs that do not know."""
    parts, unknown = list[Element](), list[str]()
    for i, story in enumerate(stories):
        if story.evaluation is None or not len(story.evaluation.examples.labels):
            unknown.append(letter(i, len(stories)))
            continue
        if len(stories) > 1:
            parts.append(element("h3", f"{letter(i, len(stories))} · {story.name}"))
        parts += _confusion(story, story.evaluation, 24 if len(stories) == 1 else 12)
    if unknown:
        names = f"{', '.join(unknown)}: " if len(stories) > 1 else ""
        note = f"{names}no evaluation of single pictures is in the run folder; trainings of today's Paceline write it."
        parts.append(element("p", note, class_="quiet"))
    return parts


def _confusion(story: Story, evaluation: Evaluation, most: int) -> list[Element]:
    examples = evaluation.examples
    size = max(
        len(story.classes), int(examples.labels.max()) + 1, int(examples.predictions.max()) + 1
    )
    classes = [*story.classes, *(str(i) for i in range(len(story.classes), size))]
    matrix = examples.confusion(size)
    right = int(np.trace(matrix))
    summary = (
        f"Step {evaluation.step:,}: {right:,} of {len(examples.labels):,} {evaluation.split} pictures right, "
        f"{len(examples.labels) - right:,} wrong."
    )
    drawn = _matrix_table(matrix, classes) if size <= TABLE_CLASSES else _matrix_picture(matrix)
    pairs = element("div", element("h4", "Most frequent mistakes"), _frequent(matrix, classes))
    return [
        element("p", summary),
        element("div", drawn, pairs, class_="confusion"),
        *_mistakes(evaluation, classes, most),
    ]


def _matrix_table(matrix: np.ndarray, classes: Sequence[str]) -> Element:
    """Rows are what pictures show, columns what the model said."""
    wrong = matrix * (1 - np.eye(len(matrix), dtype=int))
    heads = [
        element("th", element("span", shorten(name, 20)), scope="col", title=name)
        for name in classes
    ]
    rows = []
    for i, counts in enumerate(matrix):
        cells = [element("th", shorten(classes[i], 20), scope="row", title=classes[i])]
        for j, count in enumerate(counts):
            share = count / max(1, counts.sum()) if i == j else count / max(1, wrong.max())
            strong = bool(share > 0.55)  # in between, neither dark nor light numbers could be read
            kind = ("right" if i == j else "wrong") + " strong" * strong
            attributes = (
                {"class": kind, "style": f"--shade:{1 if strong else 0.5 * share:.2f}"}
                if count
                else {"class": "none"}
            )
            cells.append(element("td", f"{count:,}" if count else "·", **attributes))
        cells.append(
            element(
                "td", percent(counts[i] / counts.sum(), 1) if counts.sum() else "–", class_="share"
            )
        )
        rows.append(element("tr", cells))
    caption = element(
        "caption",
        "Rows: what the picture shows. Columns: what the model said. Last: share that was right.",
    )
    head = element("thead", element("tr", element("td"), heads, element("td")))
    return element(
        "div",
        element("table", caption, head, element("tbody", rows), class_="matrix"),
        class_="scroll",
    )


def _matrix_picture(matrix: np.ndarray) -> Element:
    """One pixel for each pair of classes, darker the larger the share of the row."""
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    pixels = (255 * (1 - np.sqrt(shares))).astype(np.uint8)[:, :, None].repeat(3, axis=2)
    told = f"Confusion matrix of {len(matrix)} classes: {np.trace(matrix) / max(1, matrix.sum()):.1%} lie on the diagonal."
    caption = "Rows: what the picture shows. Columns: what the model said."
    return element("figure", _picture(pixels, told), element("figcaption", caption), class_="heat")


def _frequent(matrix: np.ndarray, classes: Sequence[str], most: int = 10) -> Element:
    wrong = matrix * (1 - np.eye(len(matrix), dtype=int))
    order = [
        index for index in np.argsort(-wrong, axis=None, kind="stable")[:most] if wrong.flat[index]
    ]
    rows = []
    for index in order:
        i, j = divmod(int(index), len(matrix))
        names = [shorten(classes[index], 40) for index in (i, j)]
        cells = [*names, f"{matrix[i, j]:,}", percent(matrix[i, j] / matrix[i].sum(), 1)]
        rows.append(element("tr", [element("td", cell) for cell in cells]))
    return (
        _table(("shown", "taken for", "times", "of its class"), rows)
        if rows
        else element("p", "None.", class_="quiet")
    )


def _mistakes(evaluation: Evaluation, classes: Sequence[str], most: int) -> list[Element]:
    """The pictures of which the model was most sure, and wrong."""
    cards = []
    for index, picture in zip(evaluation.worst[:most], evaluation.pictures[:most], strict=False):
        shown, said = (
            classes[evaluation.examples.labels[index]],
            classes[evaluation.examples.predictions[index]],
        )
        sure = percent(evaluation.examples.probabilities[index], 1)
        image = _picture(picture, f"Test picture {index}: {shown}, taken for {said}")
        said = element("span", f"not {shorten(said, 30)}")
        caption = element(
            "figcaption", element("b", shorten(shown, 30)), said, element("small", f"{sure} sure")
        )
        cards.append(element("figure", image, caption))
    return (
        [element("h4", "Worst mistakes"), element("div", cards, class_="mistakes")] if cards else []
    )


def _picture(pixels: np.ndarray, alt: str) -> Element:
    from PIL import Image

    kind = "PNG" if max(pixels.shape[:2]) <= 48 or pixels.shape[0] > 96 else "JPEG"
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(
        buffer, kind, quality=85
    )
    data = base64.b64encode(buffer.getvalue()).decode()
    size = {"width": pixels.shape[1], "height": pixels.shape[0]}
    return element("img", src=f"data:image/{kind.lower()};base64,{data}", alt=alt, **size)


def _experiments(stories: Sequence[Story]) -> list[Element]:
    names = list(dict.fromkeys(name for story in stories for name in story.experiment))
    defaults = flatten(Experiment().to_json())
    values = {name: [story.experiment.get(name) for story in stories] for name in names}
    if len(stories) == 1:
        chosen = [name for name in names if values[name][0] != defaults.get(name)]
        shown = (
            _values({name: values[name] for name in chosen}, stories)
            if chosen
            else element("p", "All defaults.")
        )
        first = [element("p", "What differs from the defaults:", class_="quiet"), shown]
    else:
        different = {
            name: each for name, each in values.items() if any(value != each[0] for value in each)
        }
        first = [
            _values(different, stories)
            if different
            else element("p", "Nothing: all are the same experiment.")
        ]
    rest = element(
        "details", element("summary", f"All {len(names)} settings"), _values(values, stories)
    )
    return [*first, rest]


def _values(values: dict[str, list[Any]], stories: Sequence[Story]) -> Element:
    headings = ("setting", *(letter(i, len(stories)) or "value" for i in range(len(stories))))
    rows = [
        element(
            "tr",
            element("th", name.replace("_", "-"), scope="row"),
            [element("td", _value(value)) for value in each],
        )
        for name, each in values.items()
    ]
    return _table(headings, rows, "pairs" if len(stories) == 1 else "")


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value(each) for each in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:g}" if isinstance(value, float) else str(value) if value not in ("", None) else "–"
    )


def _numbers(index: int, story: Story, count: int) -> Element:
    """The evaluations as a table, for people who do not see charts."""
    rows = []
    for record in story.records:
        if f"{story.split}_loss" in record:
            cells = [
                f"{record['step']:,}",
                number(record.get("epoch"), 2),
                number(record.get("loss")),
                percent(record.get("accuracy")),
            ]
            cells += [
                number(record[f"{story.split}_loss"]),
                percent(record.get(f"{story.split}_accuracy")),
            ]
            rows.append(element("tr", [element("td", cell) for cell in cells]))
    if not rows:
        return element("p", f"{letter(index, count)} Nothing was evaluated yet.", class_="quiet")
    headings = (
        "step",
        "epoch",
        "train loss",
        "train accuracy",
        f"{story.split} loss",
        f"{story.split} accuracy",
    )
    title = f"{letter(index, count)} · {story.name}: " if count > 1 else ""
    summary = element("summary", f"{title}{len(rows)} evaluation{'s' * (len(rows) > 1)}")
    return element(
        "details",
        summary,
        _table(headings, rows),
        **({"open": "open"} if count == 1 and len(rows) <= 12 else {}),
    )


def _machines(stories: Sequence[Story]) -> Element:
    facts: list[dict[str, str]] = []
    for story in stories:
        last = story.starts[-1] if story.starts else {}
        machine = last.get("machine") or {}
        sizes = {
            f"{name} pictures": f"{size:,}"
            for name, size in story.data.items()
            if isinstance(size, int)
        }
        where = {
            "place": last.get("place"),
            "workers": last.get("workers"),
            "host": machine.get("host"),
        }
        hardware = {
            "processor": machine.get("cpu"),
            "cores": machine.get("cores"),
            "memory, GB": machine.get("memory_gb"),
        }
        facts.append(
            {k: str(v) for k, v in (where | hardware).items() if v is not None}
            | (last.get("versions") or story.versions)
            | sizes
        )
    names = list(dict.fromkeys(name for each in facts for name in each))
    return _values({name: [each.get(name) for each in facts] for name in names}, stories)


def _table(headings: Sequence[str], rows: Sequence[Element], class_: str = "") -> Element:
    head = element(
        "thead", element("tr", [element("th", heading, scope="col") for heading in headings])
    )
    return element(
        "div", element("table", head, element("tbody", rows), class_=class_), class_="scroll"
    )


def letter(index: int, count: int) -> str:
    """The short name of a run among several: A, B ... Z, A2 ...; a run alone needs none."""
    return (
        "" if count == 1 else chr(65 + index % 26) + (str(index // 26 + 1) if index >= 26 else "")
    )


def percent(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def whole_percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def thousands(value: float) -> str:
    return f"{value:,.0f}"


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "–"
    return f"{value:,.{digits}f}" if digits < 3 else f"{value:.{digits}g}"


def duration(minutes: float) -> str:
    seconds = round(60 * minutes)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds // 60 % 60} min"
