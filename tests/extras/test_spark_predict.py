"""Predicting the images of a Spark DataFrame."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers import TIMEOUT_S, paceline
from spark_runs import OWN_PYTHON, PREDICT, SPARK_TIMEOUT_S

pytestmark = pytest.mark.timeout(5 * TIMEOUT_S)


@pytest.fixture
def drawings(tmp_path: Path) -> Path:
    folder, noise = tmp_path / "drawings", np.random.default_rng(3)
    folder.mkdir()
    for number in range(40):
        Image.fromarray(noise.integers(0, 255, (32, 32, 3), np.uint8)).save(
            folder / f"{number:02d}.png"
        )
    (folder / "99.png").write_bytes(b"no picture")
    return folder


@pytest.mark.slow
def test_predict_adds_what_paceline_predict_says_and_loads_the_model_once_in_each_python(
    uninterrupted: Path, tmp_path: Path, drawings: Path
) -> None:
    (tmp_path / "predict.py").write_text(PREDICT)
    command = (sys.executable, str(tmp_path / "predict.py"))
    ended = paceline(
        str(uninterrupted),
        str(drawings),
        "found.json",
        cwd=tmp_path,
        command=command,
        timeout_s=SPARK_TIMEOUT_S,
        environment=OWN_PYTHON,
    )
    assert ended.code == 0, ended.err
    found = json.loads((tmp_path / "found.json").read_text())
    told = paceline(
        "predict", str(uninterrupted), str(drawings), "--top", "10", "--json", cwd=tmp_path
    )
    said = {Path(line["file"]).name: line for line in map(json.loads, told.out.splitlines())}
    by_name = {row["name"]: row for row in found["found"]}
    assert set(by_name) == {*said, "null"}
    for number, (name, row) in enumerate(sorted(by_name.items())):
        if name in ("99.png", "null"):
            assert (row["label"], row["probabilities"]) == (None, None)
            assert row["error"] == ("is not an image" if name == "99.png" else "is empty")
            continue
        assert row["number"] == (None if number % 5 == 0 else 2**60 + number), (
            "other columns are as they were"
        )
        assert (row["label"], row["error"]) == (said[name]["top"][0]["class"], None)
        assert sorted(row["probabilities"], reverse=True) == [
            np.float32(top["probability"]) for top in said[name]["top"]
        ]
    assert {probe["loaded"] for probe in found["probes"]} <= {0, 1}
    assert max(probe["used"] for probe in found["probes"]) > 1, (
        "a Python did several parts of the rows"
    )
    assert not found["tensorflow"], "TensorFlow is in the driver"


@pytest.mark.long
def test_the_example_predicts_a_folder_of_pictures(
    uninterrupted: Path, tmp_path: Path, drawings: Path
) -> None:
    import pyarrow.parquet

    example = str(Path(__file__).parents[2] / "examples" / "spark_predict.py")
    command = (str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", example)
    ended = paceline(
        str(uninterrupted),
        str(drawings),
        "out",
        cwd=tmp_path,
        command=command,
        timeout_s=SPARK_TIMEOUT_S,
        environment=OWN_PYTHON,
    )
    assert ended.code == 0, ended.err
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert len(rows) == 41
    assert (
        sum(
            row["error"] is None and row["label"] is not None and 0 < row["probability"] <= 1
            for row in rows
        )
        == 40
    )
