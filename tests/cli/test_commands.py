"""The table of commands: its help, and the help of each command."""

import errno
import os
import re
import subprocess
import sys
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


def test_a_ctrl_c_in_the_first_second_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever takes long to import is imported where an interruption is expected."""
    code = "import sys, paceline.cli.commands; print({'tyro', 'rich', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.cli.parse.parse", interrupt)
    assert commands.main(["train", "smoke"]) == 130
    assert capsys.readouterr().err == ""


def test_no_file_takes_the_place_of_a_standard_stream_that_is_closed() -> None:
    code = "import os, paceline.cli.commands as c; c.main(['--version']); print(os.dup(0) > 2)"
    closed = ("sh", "-c", 'exec "$@" <&- 2>&-', "sh", sys.executable, "-c", code)
    assert subprocess.run(closed, capture_output=True, text=True).stdout.endswith("\nTrue\n")


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EPIPE, ""), (errno.ENOSPC, "cannot write to standard output: No sp")]
)
def test_standard_output_that_fails_is_one_line_or_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, words: str
) -> None:
    def fail(arguments: list[str]) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(commands, "_run", fail)
    monkeypatch.setattr(commands, "silence", lambda stream: None)
    assert commands.main(["recipes"]) == 1
    err = capsys.readouterr().err
    assert (words in err) if words else not err
