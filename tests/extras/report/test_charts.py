"""The charts of the report: round ticks, few points, and lines that differ without colours."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.extras.report.charts import WIDTH, Chart, Line, nice_ticks, thin
from paceline.extras.report.sections import letter, whole_percent
from report_runs import make_run, report


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_are_few_and_hold_the_range(low: float, size: float) -> None:
    ticks, slack = nice_ticks(low, low + size), 1e-6 * (1 + abs(low) + size)
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(set(ticks))
    assert ticks[0] - slack <= low <= low + size <= ticks[-1] + slack


@given(st.lists(st.floats(-100, 100), max_size=2000))
def test_thinned_curves_fit_a_screen_and_end_where_they_end(values: list[float]) -> None:
    points = [(float(i), value) for i, value in enumerate(values)]
    thinned = thin(points)
    assert len(thinned) <= 240
    assert thinned[-1:] == points[-1:]
    assert [x for x, _ in thinned] == sorted(x for x, _ in thinned)
    assert all(min(values) - 1e-9 <= y <= max(values) + 1e-9 for _, y in thinned)


def test_curves_are_told_apart_without_their_colours(tmp_path: Path) -> None:
    """Each has its name at its end; eight have different dashes, sixteen different marks, too."""
    runs = [make_run(tmp_path / f"run-{i}", records=2, seed=i) for i in range(16)]
    page = report(*runs, out=tmp_path / "page.html")
    figure = page[page.index("<figure") : page.index("</figure>") + len("</figure>")]
    svg = ElementTree.fromstring(figure)
    names = [text.text for text in svg.iter("text") if "name" in text.get("class", "")]
    assert sorted(map(str, names)) == sorted(letter(i, 16) for i in range(16))
    paths = [(path, path.get("class", "")) for path in svg.iter("path")]
    dashes = [path.get("stroke-dasharray") for path, kind in paths if "line" in kind]
    assert len(set(dashes[:8])) == 8
    marks = [(path.get("d"), "filled" in kind) for path, kind in paths if "mark" in kind][::2]
    assert len(set(zip(dashes, marks, strict=True))) == 16


def test_names_at_the_ends_do_not_overlap() -> None:
    lines = [Line(letter(i, 10), [(0.0, 1.0), (1.0, 1.0 + i / 1000)], i) for i in range(10)]
    drawing = Chart("Loss", lines, "epoch", str, from_zero=True)
    heights = sorted(y for _, y, _ in drawing.names())
    assert len(heights) == 10
    assert min(np.diff(heights)) > 9


def test_a_curve_of_one_point_or_with_gaps_is_drawn() -> None:
    line = Line("train", [(0.0, float("nan")), (1.0, 2.0)], 0)
    drawing = Chart("Loss", [line], "epoch", str)
    assert "train: from 2.0 to 2.0" in drawing.description()
    ((_, path, _),) = drawing.lines
    assert "nan" not in path


@pytest.mark.parametrize("value", [0.0, 0.02, 0.97, 1.0])
@pytest.mark.parametrize("more", [0.0, 1e-12, 0.03])
def test_an_accuracy_axis_ends_at_100_percent(value: float, more: float) -> None:
    ys = sorted({value, min(1.0, value + more)})
    points = [(float(x), y) for x, y in enumerate(ys)]
    chart = Chart("Accuracy", [Line("", points, 0)], "epoch", whole_percent, most=1.0)
    texts = [float(text.removesuffix(" %")) for _, text in chart.levels]
    assert len(texts) > 1
    assert 0 <= min(texts) <= 100 * ys[0] + 1e-6
    assert 100 * ys[-1] - 1e-6 <= max(texts) <= 100


def test_axis_labels_have_room_for_their_text() -> None:
    points = [(0.0, 1234.5), (1_000_000.0, 123456.7)]
    chart = Chart("Speed", [Line("", points, 0)], "minutes", lambda v: f"{v:,.2f}")
    assert chart.left - 6 >= 6.5 * max(len(text) for _, text in chart.levels)
    x, text = chart.columns[-1]
    assert x + 6.5 * len(text) / 2 <= WIDTH
