"""Where runs are found."""

from __future__ import annotations

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
    with pytest.raises(UserError, match="did you mean 'smoke-12345678'"):
        existing_run("smoke-12345679", tmp_path / "runs")
    with pytest.raises(UserError, match="there are no runs"):
        existing_run("smoke-12345679", tmp_path / "nowhere")
