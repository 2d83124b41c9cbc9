"""What a package index and a reader of the repository see: versions and metadata that agree."""

import re
import sys
import tomllib

import yaml

from newcomer import ROOT

sys.path.append(str(ROOT))
import wheel_build

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_has_the_version_and_the_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    newest = re.search(r"^## (\S+) \(([\d-]+)\)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest.groups() == (PROJECT["version"], str(citation["date-released"]))
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


def test_a_package_index_gets_absolute_links_of_this_version() -> None:
    address = "https://example.org/someone/paceline"
    text = wheel_build.absolute_links((ROOT / "README.md").read_text(), address, "1.2.3")
    links = [target for _, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", text)]
    assert [each for each in links if not each.startswith(("https://", "#"))] == []
    assert f"{address}/blob/v1.2.3/docs/first-steps.md" in links
    assert f"{address}/raw/v1.2.3/docs/images/one-digest.svg" in links
    assert f"git clone {address} paceline" in text
    pages = wheel_build.project_urls(address, "1.2.3").values()
    here = [each.partition("/blob/v1.2.3/")[2] for each in pages if "/blob/" in each]
    assert [path for path in here if not (ROOT / path).exists()] == []


def test_the_workflow_runs_what_the_makefile_has() -> None:
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    runs = [step["run"] for job in flow["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == [".ci/run", "make release", "make docs"]
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {run.removeprefix("make ") for run in runs if run.startswith("make ")} <= targets
