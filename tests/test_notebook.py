"""A result in a notebook: a table of its history, and a drawing of itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from browser import Browser, needs_browser
from helpers import metrics_of, result_of
from paceline import Result

needs_notebook = pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="nbclient and ipykernel are not installed",
)


@pytest.fixture
def result(uninterrupted: Path) -> Result:
    fields = {
        name: value
        for name, value in result_of(uninterrupted).items()
        if name in Result.__dataclass_fields__
    }
    return Result(**fields, run_dir=str(uninterrupted))


def test_the_history_is_a_data_frame(result: Result, uninterrupted: Path) -> None:
    pandas = pytest.importorskip("pandas")
    history = result.history
    assert isinstance(history, pandas.DataFrame)
    assert history["step"].tolist() == [record["step"] for record in metrics_of(uninterrupted)]
    measured = history.dropna(subset=["test_accuracy"])
    assert measured["step"].tolist() == [8, 16, 24]
    assert measured["test_accuracy"].iloc[-1] == result.test_accuracy


def test_without_pandas_the_history_is_a_list(
    result: Result, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        sys.modules, "pandas", None
    )  # as where it is not installed: importing it fails
    assert result.history == metrics_of(uninterrupted)


def test_a_result_draws_itself_without_tensorflow(result: Result) -> None:
    text = result._repr_html_()
    assert f"{100 * (result.test_accuracy or 0):.2f} %" in text
    assert text.count("<svg") == 2
    assert len(text) < 100_000
    program = f"""
import sys, paceline
paceline.Result(24, True, 0.5, 1.0, 10.0, "", {result.run_dir!r})._repr_html_()
print("tensorflow" in sys.modules)
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


@needs_browser
def test_the_drawing_fits_a_notebooks_cell(result: Result, tmp_path: Path) -> None:
    page = tmp_path / "cell.html"
    page.write_text(
        "<!doctype html><title>cell</title><h1>theirs</h1>"
        f"<div style='width:600px'>{result._repr_html_()}</div>"
    )
    with Browser(tmp_path / "chromium") as browser:
        cell = browser.open(page, 800)
        assert (
            cell.evaluate(
                "Math.max(...[...document.querySelectorAll('div *')]"
                ".map(e => e.getBoundingClientRect().right))"
            )
            <= 610
        )
        assert (cell.requests, cell.errors) == ([], [])
        assert (
            cell.evaluate("getComputedStyle(document.querySelector('h1')).letterSpacing")
            == "normal"
        ), "style leaked"


@needs_notebook
def test_a_real_notebook_trains_and_shows_the_result(tmp_path: Path, uninterrupted: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    cells = [
        "import sys, paceline\n"
        'result = paceline.train("smoke", run=paceline.Run(run_dir="run"), progress=False)\n'
        "result",
        'result.history[["step", "loss"]].tail(1)',
        'print(result.state_sha256, "tensorflow" in sys.modules)',
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    done = client.execute()
    drawn, table, printed = (cell.outputs[-1] for cell in done.cells)
    assert "<svg" in drawn.data["text/html"]
    assert "<table" in table.data["text/html"]
    assert printed.text == f"{result_of(uninterrupted)['state_sha256']} False\n"
