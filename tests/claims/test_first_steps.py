"""docs/first-steps.md and docs/same-bits.md: every command and program is run as it stands."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path

import pytest

from helpers import Ended, paceline, result_of
from newcomer import commands_of, why_not

DOCS = Path(__file__).parents[2] / "docs"


def run_page(page: str, folder: Path) -> dict[str, Ended]:
    """Save the programs of a page and run its commands in this environment, one by one; return how
    they ended. `newcomer.py` does the same in an empty environment."""
    own = Path(sys.executable).parent
    path = {"PATH": f"{own}{os.pathsep}{os.environ['PATH']}"}
    ended = {}
    for command in commands_of(DOCS / page):
        text = command.text
        if named := re.match(r"# (\w+\.py)\n", text):
            (folder / named[1]).write_text(text)
        elif command.language == "bash" and not why_not(command):
            bash = ("bash", "-c", text)
            ended[text] = paceline(cwd=folder, command=bash, environment=path, timeout_s=400)
            assert ended[text].code == 0, (text, ended[text])
    return ended


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_command_of_the_first_steps_does_what_the_page_says(tmp_path: Path) -> None:
    ended = run_page("first-steps.md", tmp_path)
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
    for name in ("report.html", "model.keras", "model.keras.json"):
        assert (tmp_path / name).exists(), name


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_command_that_checks_the_same_bits_finds_them(tmp_path: Path) -> None:
    ended = run_page("same-bits.md", tmp_path)
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
