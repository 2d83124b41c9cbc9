"""The charts of the report: round ticks, few points, and lines that differ without colours."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.extras.report.charts import Chart, Drawing, Line, log_ticks, nice_ticks, thin
from paceline.extras.report.formats import letter
from report_runs import make_run, report


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_ticks_are_few_and_hold_the_range(low: float, size: float) -> None:
    ticks = nice_ticks(low, low + size)
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= low + 1e-6 * (1 + abs(low) + size)
    assert ticks[-1] >= low + size - 1e-6 * (1 + abs(low) + size)


@given(st.floats(1e-8, 1e6), st.floats(1, 1e12))
def test_logarithmic_ticks_are_few_and_hold_the_range(low: float, times: float) -> None:
    ticks = log_ticks(low, low * times)
    assert 2 <= len(ticks) <= 24
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= low * 1.01
    assert ticks[-1] >= low * times * 0.99


@given(st.lists(st.floats(-100, 100), max_size=2000))
def test_thinned_curves_fit_a_screen_and_end_where_they_end(values: list[float]) -> None:
    points = [(float(i), value) for i, value in enumerate(values)]
    thinned = thin(points)
    assert len(thinned) <= 240
    assert thinned[-1:] == points[-1:]
    assert [x for x, _ in thinned] == sorted(x for x, _ in thinned)
    if values:
        assert (
            min(values) - 1e-9
            <= min(y for _, y in thinned)
            <= max(y for _, y in thinned)
            <= max(values) + 1e-9
        )


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
    drawing = Drawing(Chart("Loss", lines, "epoch", str, from_zero=True))
    heights = sorted(y for _, y, _ in drawing.names())
    assert len(heights) == 10
    assert min(np.diff(heights)) > 9


def test_a_curve_of_one_point_or_with_gaps_is_drawn() -> None:
    line = Line("train", [(0.0, float("nan")), (1.0, 2.0)], 0)
    drawing = Drawing(Chart("Loss", [line], "epoch", str, log=True))
    assert "train: from 2.0 to 2.0" in drawing.description()
    ((_, path, _),) = drawing.lines
    assert "nan" not in path
