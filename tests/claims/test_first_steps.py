"""Every command and program of README.md and the first guides is run as it stands."""

import contextlib
import io
import os
import re
import sys
from pathlib import Path

import pytest

from helpers import result_of
from newcomer import ROOT, UV, build_wheel, commands_of, install, prepare, run_page, uv

DOCS = ROOT / "docs"
HERE = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_commands_of_the_readme_are_found() -> None:
    found = commands_of(ROOT / "README.md")
    assert len(found) >= 15
    assert ("sh", "paceline train") in found
    assert ("sh", "paceline predict RUN photos/ --top 3") in found
    assert all(text.startswith("paceline ") for language, text in found if language == "sh")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not UV, reason="uv is not installed")
@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "first-steps.md"])
def test_the_commands_of_a_page_run_in_an_empty_environment(page: Path, tmp_path: Path) -> None:
    wheel, _ = build_wheel(tmp_path)
    uv("venv", "--python", sys.executable, str(tmp_path / "venv"))
    install(tmp_path, f"{wheel}[cpu,onnx,ray]", "--constraint", str(ROOT / "constraints.txt"))
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    environment = {
        "PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "PACELINE_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": "",
    }
    if page.name == "README.md":
        prepare(tmp_path / "work")
    assert len(run_page(page, tmp_path / "work", environment)) >= 14


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_command_of_the_first_steps_does_what_the_page_says(tmp_path: Path) -> None:
    ended = run_page(DOCS / "first-steps.md", tmp_path, HERE)
    assert len(ended) == 15
    assert result_of(tmp_path / "runs/first")["test_accuracy"] > 0.96
    names = ("stopped", "whole", "two-workers")
    digests = [result_of(tmp_path / "runs" / name)["state_sha256"] for name in names]
    assert len(set(digests)) == 1
    (compared,) = (each.out for line, each in ended.items() if line.startswith("grep"))
    assert compared.splitlines() == [f'"state_sha256": "{digests[0]}"'] * 3
    assert result_of(tmp_path / "runs/photos")["test_accuracy"] > 0.9
    (predicted,) = (each.out for line, each in ended.items() if "predict" in line)
    rows = predicted.splitlines()[-2:]
    assert [re.findall("moon|star", row)[1] for row in rows] == ["moon", "star"], predicted
    for name in ("report.html", "model.keras"):
        assert (tmp_path / name).exists(), name


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_command_that_checks_the_same_bits_finds_them(tmp_path: Path) -> None:
    ended = run_page(DOCS / "same-bits.md", tmp_path, HERE)
    (compared,) = (each.out for line, each in ended.items() if line.startswith("grep"))
    assert len(compared.splitlines()) == 4
    assert len({line.rpartition(" ")[2] for line in compared.splitlines()}) == 1


def test_the_example_of_sums_prints_what_the_page_says() -> None:
    text = (DOCS / "same-bits.md").read_text()
    program, wanted = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)[0]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    assert out.getvalue() == wanted
