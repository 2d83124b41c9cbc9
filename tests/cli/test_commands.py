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


BEGINNING = """
import sys
before = {*sys.modules}
from paceline.__main__ import main
assert {*sys.modules} - before == {"paceline", "paceline.__main__"}
import os, signal
class Finder:
    imports = int(sys.argv.pop(1))
    def find_spec(self, *_):
        self.imports -= 1
        if not self.imports:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.exit(main())
"""


@pytest.mark.parametrize("imports", [1, 3, 10, 40, 150])
def test_a_ctrl_c_while_the_program_is_imported_ends_it_at_once(imports: int) -> None:
    """From its first line on: only what Python does before takes a time that we do not decide."""
    command = [sys.executable, "-c", BEGINNING, str(imports), "recipes"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("handler", ["signal.default_int_handler", "signal.SIG_IGN"])
def test_a_ctrl_c_interrupts_a_command_that_works_unless_it_was_ignored_before(
    handler: str,
) -> None:
    code = f"""import signal; signal.signal(signal.SIGINT, {handler})
import paceline.cli.runs, paceline.__main__
paceline.cli.runs.Recipes.__call__ = lambda self: signal.getsignal(signal.SIGINT) is {handler}
raise SystemExit(paceline.__main__.main())"""
    assert subprocess.run([sys.executable, "-c", code, "recipes"]).returncode == 1


def test_an_interrupted_command_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    def fail(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(commands, "_run", fail)
    monkeypatch.setattr(commands, "silence", lambda stream: None)
    assert commands.main(["recipes"]) == 1
    err = capsys.readouterr().err
    assert (words in err) if words else not err
