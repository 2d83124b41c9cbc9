"""The verbs of the library: what they return, and what they refuse."""

from pathlib import Path

import pytest
from safetensors import safe_open

import paceline as library
from paceline.experiment.recipes.table import get_recipe
from report_runs import make_folder


def test_runs_of_the_library_are_the_rows_of_the_table(tmp_path: Path):
    make_folder(tmp_path, "worse", get_recipe("smoke"), True, 0.5)
    make_folder(tmp_path, "better", get_recipe("smoke"), False, 0.9)
    rows = library.runs(tmp_path, sort="accuracy")
    assert [(row.name, row.accuracy) for row in rows] == [("better", 0.9), ("worse", 0.5)]
    assert [line.split()[:4] for line in repr(rows).splitlines()] == [
        ["2", "runs"],
        ["name", "state", "step", "accuracy"],
        ["better", "unfinished", "7", "0.9000"],
        ["worse", "finished", "7", "0.5000"],
    ]
    assert rows.dataframe().accuracy.tolist() == [0.9, 0.5]
    assert "<td>better</td>" in rows._repr_html_()
    assert rows[0].note == f"paceline train smoke --run-dir {tmp_path / 'better'}"
    with pytest.raises(library.UserError, match="there is no folder"):
        library.runs(tmp_path / "nowhere")
    with pytest.raises(library.UserError, match="sort is 'size'; it must be one of name, state"):
        library.runs(tmp_path, sort="size")


def test_export_of_the_library_writes_the_model_and_replaces_nothing(
    uninterrupted: Path, tmp_path: Path
):
    out = library.export(uninterrupted, tmp_path / "weights.safetensors", to="safetensors")
    assert out == tmp_path / "weights.safetensors"
    with safe_open(out, "numpy") as file:
        assert file.keys()
    with pytest.raises(library.UserError, match="exists"):
        library.export(uninterrupted, out, to="safetensors")


def test_report_of_the_library_writes_a_page_and_returns_what_it_left_out(
    uninterrupted: Path, tmp_path: Path
):
    page = tmp_path / "page.html"
    assert library.report(uninterrupted, page) == []
    assert uninterrupted.name in page.read_text()
    with pytest.raises(library.UserError, match="exists"):
        library.report(uninterrupted, page)
    (left_out,) = library.report([uninterrupted, tmp_path / "nowhere"], page, force=True)
    assert "nowhere" in left_out
    link = library.report(uninterrupted, page, force=True)
    assert (repr(link), link._repr_html_()[:9]) == (f"ready: {page}", '<a href="')
