"""The axes of a report's charts, and how it names a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.experiment.experiment import Data, Experiment, Model
from paceline.extras.report.charts import WIDTH, Chart, Drawing, Line
from paceline.extras.report.formats import whole_percent
from paceline.extras.report.run_data import read_run
from report_runs import make_folder, make_run, report


@pytest.mark.parametrize("value", [0.0, 0.02, 0.4, 0.97, 1.0])
@pytest.mark.parametrize("more", [0.0, 1e-12, 0.03])
def test_an_accuracy_axis_ends_at_100_percent(value: float, more: float):
    ys = sorted({value, min(1.0, value + more)})
    points = [(float(x), y) for x, y in enumerate(ys)]
    drawing = Drawing(Chart("Accuracy", [Line("", points, 0)], "epoch", whole_percent, most=1.0))
    texts = [float(text.removesuffix(" %")) for _, text in drawing.levels]
    assert len(texts) > 1
    assert 0 <= min(texts) <= 100 * ys[0] + 1e-6
    assert 100 * ys[-1] - 1e-6 <= max(texts) <= 100


def test_axis_labels_have_room_for_their_text():
    points = [(0.0, 1234.5), (1_000_000.0, 123456.7)]
    drawing = Drawing(Chart("Speed", [Line("", points, 0)], "minutes", lambda v: f"{v:,.2f}"))
    widest = max(len(text) for _, text in drawing.levels)
    assert drawing.left - 6 >= 6.5 * widest
    x, text = drawing.columns[-1]
    assert x + 6.5 * len(text) / 2 <= WIDTH


def test_the_report_names_the_data_and_says_how_to_continue(tmp_path: Path):
    experiment = Experiment(
        data=Data(source="auto", dir="~/my photos"),
        model=Model(layout="imagenet", depth=18),
        global_batch_size=1,
        replicas=1,
    )
    run = make_folder(tmp_path / "runs", "mine", experiment, finished=False)
    data = read_run(run)
    assert data.description == "ResNet-18 on my photos"
    assert any(note.endswith(f"--run-dir {run.path}") for note in data.notes), data.notes
    page = tmp_path / "page.html"
    report(run.path, out=page)
    assert "this command continues it: paceline train" in page.read_text()
    report(make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1), out=tmp_path / "two.html")
    assert 'data-name="accuracy"' in (tmp_path / "two.html").read_text()
