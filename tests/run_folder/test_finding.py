"""Where runs are found."""

import os
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.run_folder.finding import all_runs, existing_run
from paceline.run_folder.folder import RunFolder, default_path

EXPERIMENT = Experiment(seed=3)
FACTS = {"train": 50000, "test": 10000}


def test_the_default_folder_is_named_by_recipe_and_digest() -> None:
    assert default_path("smoke", EXPERIMENT) == f"runs/smoke-{EXPERIMENT.digest()}"


def test_a_run_is_found_by_path_or_by_name(tmp_path: Path) -> None:
    made = RunFolder(tmp_path / "runs" / "smoke-12345678")
    made.open(EXPERIMENT, FACTS)
    assert existing_run(made.path).path == made.path
    assert existing_run("smoke-12345678", tmp_path / "runs").path == made.path
    assert [run.path for run in all_runs(tmp_path / "runs")] == [made.path]
    assert existing_run("smoke", tmp_path / "runs").path == made.path
    with pytest.raises(UserError, match="did you mean 'smoke-12345678'"):
        existing_run("smoke-12345679", tmp_path / "runs")
    with pytest.raises(UserError, match="there are no runs"):
        existing_run("smoke-12345679", tmp_path / "nowhere")


def test_last_is_the_newest_run_and_a_recipe_with_several_runs_is_refused(tmp_path: Path) -> None:
    for name, seconds in (
        ("smoke-12345678", 200),
        ("smoke-aaaaaaaa", 300),
        ("smoke-bbbbbbbb", 100),
    ):
        made = RunFolder(tmp_path / name)
        made.open(EXPERIMENT, FACTS)
        os.utime(made.path / "config.json", (seconds, seconds))
    assert existing_run("last", tmp_path).path.name == "smoke-aaaaaaaa"
    with pytest.raises(UserError, match="there are 3 runs of smoke: smoke-12345678, smoke-aaaaaa"):
        existing_run("smoke", tmp_path)
