"""`paceline runs`, `report` and `tensorboard`."""

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from helpers import fine, paceline, result_of
from in_process import paceline_here
from paceline.cli.parse import parse
from paceline.cli.train import Train
from paceline.experiment.experiment import Experiment, Group, Scaling
from paceline.experiment.recipes.table import RECIPES, get_recipe
from paceline.run_folder.folder import RunFolder, default_path
from paceline.run_folder.listing import list_runs, resume_command
from report_runs import make_folder


def test_the_table_tells_states_and_sorts_by_every_column(tmp_path: Path):
    smoke = get_recipe("smoke")
    make_folder(tmp_path, "a", smoke, True, 0.5)
    make_folder(tmp_path, "b", smoke, False, 0.9)
    busy = make_folder(tmp_path, "c", smoke, None, 0.7)
    busy.lock()
    make_folder(tmp_path, "d", smoke)
    (tmp_path / "d" / "config.json").write_text("{")
    states = {row.name: row.state for row in list_runs(tmp_path)}
    assert states == {"a": "finished", "b": "unfinished", "c": "running", "d": "damaged"}
    busy.unlock()
    assert {row.name: row.state for row in list_runs(tmp_path)}["c"] == "unfinished"
    assert [row.name for row in list_runs(tmp_path, "accuracy")] == ["b", "c", "a", "d"]
    assert [row.name for row in list_runs(tmp_path, "loss")] == ["b", "c", "a", "d"]
    assert [row.name for row in list_runs(tmp_path, "name")] == ["a", "b", "c", "d"]


def parsed(command: list[str]) -> tuple[Experiment, str]:
    """Experiment and run folder that `paceline train ...` would use."""
    assert command[0] == "train"
    flags = parse(Train, "paceline train", command[2:], Train.of_recipe(command[1]))
    return flags.experiment, flags.run.run_dir or str(default_path(command[1], flags.experiment))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_command_that_resumes_gives_the_same_experiment_and_folder(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    plain = get_recipe(recipe)
    other = replace(
        plain,
        data=replace(plain.data, dir="my data/it's"),
        augment=replace(plain.augment, flip=not plain.augment.flip),
        scaling=Scaling("mean", (1.0, 2.5, 3.0)),
        optimizer=replace(plain.optimizer, groups=(Group("*/kernel", rate=2, until=0.5),)),
        schedule=replace(plain.schedule, boundaries=(1.0, 2.0), factors=(0.1, 0.01)),
        seed=3,
    )
    bare = replace(plain, schedule=replace(plain.schedule, boundaries=(), factors=()), steps=9)
    mine = Path("elsewhere/mine")
    for experiment, named in ((plain, None), (other, mine), (bare, None)):
        path = named or default_path(recipe, experiment)
        command = resume_command(path, experiment)
        assert parsed(shlex.split(shlex.join(command))) == (experiment, str(path)), command
        assert ("--run-dir" in command) == (path == mine)


@pytest.mark.slow
def test_the_command_in_the_table_finishes_the_run(
    stopped_at_5: Path, uninterrupted: Path, tmp_path: Path
):
    experiment = RunFolder(stopped_at_5).experiment()
    folder = tmp_path / default_path("smoke", experiment)
    shutil.copytree(stopped_at_5, folder)
    listed = paceline("runs", cwd=tmp_path)
    assert listed.code == 0, listed
    (line,) = [line for line in listed.out.splitlines() if line.startswith("resume ")]
    assert line == f"resume {folder.name}: paceline train smoke"
    ended = paceline_here(*shlex.split(line.split(": paceline ")[1]), cwd=tmp_path)
    assert ended.code == 0, ended
    assert result_of(folder)["state_sha256"] == result_of(uninterrupted)["state_sha256"]


def test_no_runs_and_no_folder_are_one_line(tmp_path: Path):
    for arguments, part in (
        ([], "there is no folder runs"),
        (["."], "there are no runs in ."),
        (["--sort", "x"], "invalid choice 'x' for argument '--sort'"),
    ):
        ended = paceline_here("runs", *arguments, cwd=tmp_path)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert part in ended.err


@pytest.mark.parametrize("terminal", [False, True])
def test_runs_cuts_no_names_at_80_columns(tmp_path: Path, terminal: bool):
    name = "cifar10-resnet56-fast-with-a-long-name-of-its-own-1a2b3c4d"
    make_folder(tmp_path, name, get_recipe("smoke"), True, 0.5)
    forced = {"FORCE_COLOR": "1", "TERM": "xterm"} if terminal else {}
    ended = fine(paceline_here("runs", ".", cwd=tmp_path, environment={"COLUMNS": "80"} | forced))
    assert name in ended.out
    assert "…" not in ended.out
