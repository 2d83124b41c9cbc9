"""`paceline runs`, `tensorboard`, completion, and the help of every command."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

import paceline as library
from helpers import free_port, paceline, program, result_of, wait_until
from in_process import paceline_here
from paceline.cli import commands
from paceline.cli.parse import parse
from paceline.cli.train import Train
from paceline.experiment.experiment import Data, Experiment, Group, Scaling
from paceline.experiment.recipes.table import RECIPES
from paceline.runs.finding import default_path
from paceline.runs.folder import RunFolder
from paceline.runs.listing import list_runs, resume_command

FACTS = {"train": 1, "test": 1, "classes": ["a"], "image_shape": None}


def make_folder(
    root: Path,
    name: str,
    experiment: Experiment,
    finished: bool | None = None,
    accuracy: float = 0.0,
) -> RunFolder:
    run = RunFolder(root / name)
    run.open(experiment, FACTS)
    run.metrics.append(
        {
            "step": 7,
            "test_accuracy": accuracy,
            "test_loss": 1 - accuracy,
            "images_per_second": 100.0,
        }
    )
    if finished is not None:
        run.write_result({"step": 7, "finished": finished})
    return run


# runs


def test_the_table_tells_states_and_sorts_by_every_column(tmp_path: Path):
    smoke = RECIPES["smoke"]()
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
    plain = RECIPES[recipe]()
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
    for experiment in (plain, other, bare):
        default = default_path(recipe, experiment)
        for path in (default, Path("elsewhere/mine")):
            command = resume_command(path, experiment)
            assert parsed(shlex.split(shlex.join(command))) == (experiment, str(path)), command
            assert ("--run-dir" in command) == (path != default)


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


# the same verbs in Python


def test_runs_of_the_library_are_the_rows_of_the_table(tmp_path: Path):
    make_folder(tmp_path, "worse", RECIPES["smoke"](), True, 0.5)
    make_folder(tmp_path, "better", RECIPES["smoke"](), False, 0.9)
    rows = library.runs(tmp_path, sort="accuracy")
    assert [(row.name, row.accuracy) for row in rows] == [("better", 0.9), ("worse", 0.5)]
    assert rows[0].note == f"paceline train smoke --run-dir {tmp_path / 'better'}"
    with pytest.raises(library.UserError, match="there is no folder"):
        library.runs(tmp_path / "nowhere")
    with pytest.raises(library.UserError, match="sort is 'size'; it must be one of name, state"):
        library.runs(tmp_path, sort="size")


def test_export_of_the_library_writes_the_model_and_replaces_nothing(
    uninterrupted: Path, tmp_path: Path
):
    out = library.export(uninterrupted, tmp_path / "weights.safetensors", to="safetensors")
    assert out == tmp_path / "weights.safetensors"
    with safe_open(out, "numpy") as file:
        assert file.keys()
    with pytest.raises(library.UserError, match="exists"):
        library.export(uninterrupted, out, to="safetensors")
    with pytest.raises(library.UserError, match="only weights"):
        library.export(uninterrupted, tmp_path / "new", to="safetensors", serving=True)


def test_report_of_the_library_writes_a_page_and_returns_what_it_left_out(
    uninterrupted: Path, tmp_path: Path
):
    page = tmp_path / "page.html"
    assert library.report(uninterrupted, page) == []
    assert uninterrupted.name in page.read_text()
    with pytest.raises(library.UserError, match="exists"):
        library.report(uninterrupted, page)
    (left_out,) = library.report([uninterrupted, tmp_path / "nowhere"], page, force=True)
    assert "nowhere" in left_out


# tensorboard


def test_tensorboard_shows_several_runs_and_ends_with_ctrl_c(
    uninterrupted: Path, stopped_at_5: Path, tmp_path: Path
):
    port = free_port()
    shutil.copytree(stopped_at_5, tmp_path / "runs" / "five")
    with program(
        "tensorboard", str(uninterrupted), "five", "--port", str(port), cwd=tmp_path
    ) as running:

        def shown() -> bool:
            assert running.is_running()
            try:
                with urllib.request.urlopen(
                    f"http://localhost:{port}/data/runs", timeout=5
                ) as answer:
                    return sorted(json.load(answer)) == ["five", "run"]
            except OSError:
                return False

        wait_until(shown)
        os.kill(running.pid, signal.SIGINT)
        ended = running.wait(20)
    assert ended.code == 130
    assert f"http://localhost:{port}/" in ended.err
    refused = paceline_here("tensorboard", "nowhere", cwd=tmp_path)
    assert (refused.code, refused.err.count("\n")) == (2, 1)


# completion and help


def test_bash_completes_commands_flags_and_values(tmp_path: Path):
    command = tmp_path / "bin" / "paceline"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m paceline "$@"\n')
    command.chmod(0o755)
    script = 'eval "$(paceline completion bash)"; complete -p paceline\n'
    for line in (
        "paceline tens",
        "paceline data conv",
        "paceline train smoke --threads-per",
        "paceline export x y --to save",
    ):
        words = " ".join(shlex.quote(word) for word in line.split())
        script += f"COMP_WORDS=({words}); COMP_CWORD={len(line.split()) - 1}; _tyro_paceline; "
        script += 'echo "${COMPREPLY[@]}"\n'
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [
        "complete -F _tyro_paceline paceline",
        "tensorboard",
        "convert",
        "--threads-per-replica",
        "savedmodel",
    ], done.stderr


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


def test_a_mistyped_flag_is_answered_with_the_nearest(tmp_path: Path):
    for arguments, part in (
        (["eval", "x", "--dir", "y"], "did you mean --data.dir?"),
        (["predict", "x", "y", "--chekpoint", "1"], "did you mean --checkpoint?"),
    ):
        ended = paceline_here(*arguments, cwd=tmp_path)
        assert ended.code == 2
        assert part in ended.err


def test_a_fact_that_is_newer_than_a_run_does_not_keep_it_from_going_on(tmp_path: Path):
    experiment = Experiment(data=Data())
    RunFolder(tmp_path / "run").open(experiment, {"train": 5})
    assert (
        RunFolder(tmp_path / "run").open(experiment, {"train": 5, "image_shape": [1, 2, 3]}) == []
    )
