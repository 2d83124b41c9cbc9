"""The table of commands: its help, and the help of each command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers import paceline
from in_process import paceline_here
from paceline.cli import commands
from paceline.cli.parse import flags_of
from paceline.cli.train import Train
from paceline.experiment.recipes.table import RECIPES


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(arguments: list[str], here: Path) -> None:
    ended = (paceline_here if arguments else paceline)(*arguments, cwd=here)
    assert (ended.code, ended.err) == (0, "")
    for word in (*commands.COMMANDS, "Begin with: paceline train"):
        assert word in ended.out


def test_help_of_train_is_one_screen_of_the_flags_that_people_change(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = paceline_here("train", "smoke", "--help", cwd=here)
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert "paceline train [RECIPE] [flags]" in lines[0]
    assert len(lines) <= 54
    assert max(map(len, lines)) < 80
    for part in ("--schedule.rate ", "--lr is --schedule.rate", "over all replicas [32]"):
        assert part in ended.out


def test_the_rest_of_the_help_is_there_when_asked_for(here: Path) -> None:
    every = paceline_here("train", "smoke", "--help", "all", cwd=here).out
    for flag in flags_of(Train):
        assert f"--{flag}" in every or flag.rpartition(".")[2].startswith("no-")
    assert "--stall-timeout" in every
    section = paceline_here("train", "smoke", "--workers", "2", "--help", "optimizer", cwd=here).out
    assert "--optimizer.beta-2" in section
    assert "--schedule.rate" not in section


def test_recipes_are_listed_with_what_they_are(here: Path) -> None:
    ended = paceline_here("recipes", cwd=here)
    assert (ended.code, ended.err) == (0, "")
    for name in RECIPES:
        assert re.search(rf"^{name} ", ended.out, re.MULTILINE)


@pytest.mark.parametrize("command", commands.COMMANDS)
def test_the_help_of_every_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]):
    try:
        code = commands.main([*command.split(), "--help"])
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr().out
    assert code == 0
    (example,) = re.findall(r"Example: .*", shown)
    assert f"paceline {command}" in example


@pytest.mark.parametrize("command", ["info", "check"])
def test_the_help_of_data_commands_has_only_what_they_use(command: str, here: Path) -> None:
    shown = paceline_here("data", command, "--help", cwd=here).out
    assert "--records.first-label" in shown
    for other in ("cutout", "mixup", "flip", "--data.dir", "--data.source"):
        assert other not in shown
