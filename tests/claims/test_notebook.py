"""A result in a notebook: a table of its history, and a drawing of itself."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers import TIMEOUT_S, metrics_of, result_of
from paceline import Result

needs_notebook = pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="nbclient and ipykernel are not installed",
)


@pytest.fixture
def result(uninterrupted: Path) -> Result:
    values = result_of(uninterrupted) | {"run_dir": str(uninterrupted)}
    return Result(**{name: values[name] for name in Result.__dataclass_fields__ if name in values})


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
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
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
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert shown.stdout == b"False\n"


NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def run_cells(cells: list[str], folder: Path) -> list[list[Any]]:
    """Run the cells of a notebook in a folder; return the outputs of each."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": str(folder)}}
    patience = {"timeout": 2 * TIMEOUT_S, "startup_timeout": TIMEOUT_S}
    client = NotebookClient(notebook, kernel_name="python3", resources=where, **patience)
    return [cell.outputs for cell in client.execute().cells]


def printed_by(name: str, folder: Path) -> str:
    """Run a notebook of the examples as it is; return everything that its cells print."""
    cells = json.loads((NOTEBOOKS / name).read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    outputs = [each for outputs in run_cells(code, folder) for each in outputs]
    return "".join(each.text for each in outputs if each.output_type == "stream")


@pytest.mark.slow
@needs_notebook
def test_a_real_notebook_trains_and_shows_the_result(tmp_path: Path, uninterrupted: Path) -> None:
    cells = [
        "import sys, paceline\n"
        'result = paceline.train("smoke", run=paceline.Run(run_dir="run"), progress=False)\n'
        "result",
        'result.history[["step", "loss"]].tail(1)',
        'print(result.state_sha256, "tensorflow" in sys.modules)',
    ]
    drawn, table, printed = (outputs[-1] for outputs in run_cells(cells, tmp_path))
    assert "<svg" in drawn.data["text/html"]
    assert "<table" in table.data["text/html"]
    assert printed.text == f"{result_of(uninterrupted)['state_sha256']} False\n"


@needs_notebook
@pytest.mark.long
def test_a_model_of_a_notebook_cell_is_trained_with_what_it_uses(tmp_path: Path) -> None:
    cells = [
        "import keras, paceline\nfrom keras import layers as kl\nWIDTH = 4",
        "def pooled(x):\n    return kl.GlobalAveragePooling2D()(x)",
        "def build(image_shape, num_classes):\n"
        "    image = keras.Input(image_shape)\n"
        "    x = pooled(kl.Conv2D(WIDTH, 3)(image))\n"
        "    return keras.Model(image, kl.Dense(num_classes)(x))",
        *(
            f'result = paceline.train("smoke", model={model}, steps=2, progress=False)\n'
            "print(result.step, paceline.load(result).count_params())"
            for model in ("build", "build((32, 32, 3), 10)")
        ),
    ]
    parameters = 4 * 28 + 5 * 10
    shown = [outputs[-1].text for outputs in run_cells(cells, tmp_path)[-2:]]
    assert shown == [f"2 {parameters}\n"] * 2


@needs_notebook
@pytest.mark.long
def test_the_notebook_train_look_predict(tmp_path: Path) -> None:
    """The first run confuses two classes, the second does not."""
    printed = printed_by("train-look-predict.ipynb", tmp_path)
    first, second = (float(number) for number in re.findall(r"accuracy ([0-9.]+),", printed))
    assert first < 0.9 < second
    pairs = re.findall(r"is (\w+) - predicted: (\w+)", printed)
    assert len(pairs) == 4
    assert all(true == predicted for true, predicted in pairs)
    assert {"stripes.html", "stripes.keras"} < set(os.listdir(tmp_path))


@needs_notebook
@pytest.mark.long
def test_the_notebook_two_places_one_digest(tmp_path: Path, uninterrupted: Path) -> None:
    printed = printed_by("two-places-one-digest.ipynb", tmp_path)
    digests = re.findall(r"^[0-9a-f]{64}$", printed, re.MULTILINE)
    same = result_of(uninterrupted)["state_sha256"]
    assert [digest == same for digest in digests] == [True, True, True, True, False]
