"""What a package index and a reader of the repository see: versions and metadata that agree."""

from __future__ import annotations

import re
import tomllib

import yaml

from newcomer import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_has_the_version_and_the_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"


def test_the_version_matrix_has_the_versions_that_are_installed_for_tests() -> None:
    lines = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    pinned = dict(line.split("==") for line in lines)
    matrix = (ROOT / "docs" / "versions.md").read_text()
    for name, packages in (
        ("TensorFlow", ["tensorflow-cpu"]),
        ("Keras", ["keras"]),
        ("NumPy", ["numpy"]),
        ("Ray", ["ray"]),
        ("PySpark", ["pyspark"]),
        ("ONNX, ONNX Runtime", ["onnx", "onnxruntime"]),
        ("obstore", ["obstore"]),
        ("MLflow, Weights & Biases", ["mlflow-skinny", "wandb"]),
    ):
        (tested,) = re.findall(rf"^\| {re.escape(name)}[^|]*\| ([^|]*) \|", matrix, re.MULTILINE)
        assert tested == ", ".join(pinned[package] for package in packages)


def test_every_extra_that_a_message_or_a_page_names_exists() -> None:
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
    sources = (ROOT / "src" / "paceline").rglob("*.py")
    named = {
        extra
        for file in (*pages, *sources)
        for extras in re.findall(r"paceline\[([a-z0-9,]+)\]", file.read_text())
        for extra in extras.split(",")
    }
    assert "s3" in named
    assert named <= set(PROJECT["optional-dependencies"])
