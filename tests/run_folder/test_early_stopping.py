"""Early stopping is part of the experiment: the same end and the same bits everywhere."""

import json
import shutil
from pathlib import Path

import pytest

from helpers import metrics_of, paceline, result_of
from in_process import paceline_here
from paceline.errors import UserError
from paceline.experiment.experiment import Data, EarlyStopping, Experiment
from paceline.experiment.recipes.table import get_recipe
from paceline.run_folder.early_stopping import has_converged

FLAGS = ("--data.validation", "48", "--early-stopping.patience", "1", "--evaluate-every", "0.5")
FLAGS += ("--early-stopping.metric", "accuracy", "--early-stopping.min-delta", "0.5")
"""No evaluation of smoke is better than the first by 0.5, so the second one ends it."""


@pytest.mark.parametrize(
    ("settings", "values", "ends"),
    [
        ({"patience": 2}, [], False),
        ({"patience": 2}, [0.5, 0.4], False),
        ({"patience": 2}, [0.5, 0.4, 0.5], True),
        ({"patience": 2}, [0.5, 0.4, 0.6, 0.6], False),
        ({"patience": 1, "metric": "loss"}, [2.0, 1.0], False),
        ({"patience": 1, "metric": "loss"}, [1.0, 2.0], True),
        ({"patience": 1, "min_delta": 0.1}, [0.5, 0.55], True),
        ({"patience": 1, "min_delta": 0.1}, [0.5, 0.65], False),
        ({"patience": 2}, [float("nan"), float("nan")], True),
    ],
)
def test_training_ends_after_as_many_evaluations_without_improvement_as_patience_says(
    settings: dict[str, float], values: list[float], ends: bool
) -> None:
    assert has_converged(EarlyStopping(**settings), values) is ends


def test_early_stopping_off_leaves_the_hash_of_an_experiment_and_on_changes_it() -> None:
    without = Experiment(data=Data(validation=8))
    assert get_recipe("smoke").digest() == "d08e55db"
    assert Experiment(data=Data(validation=8), early_stopping=EarlyStopping(2)).digest() != (
        without.digest()
    )


@pytest.mark.parametrize("settings", [{"data": Data()}, {"evaluate_every": 0.0}])
def test_early_stopping_without_a_validation_split_or_evaluations_is_refused(settings) -> None:
    with pytest.raises(UserError, match="early stopping needs a validation split"):
        Experiment(**({"data": Data(validation=8), "early_stopping": EarlyStopping(1)} | settings))


def train(run: Path, *flags: str, program=paceline_here, code: int = 0) -> dict:
    ended = program("train", "smoke", *FLAGS, "--run-dir", str(run), *flags, cwd=run.parent)
    assert ended.code == code, ended.err
    return result_of(run)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("early") / "run"
    train(run)
    return run


@pytest.mark.slow
def test_a_training_that_ends_early_is_finished_and_has_all_measures(ended: Path) -> None:
    result, last = result_of(ended), metrics_of(ended)[-1]
    assert (result["finished"], result["ended_early"]) == (True, True)
    assert 0 < result["step"] < 24
    assert last["step"] == result["step"]
    assert last["test_accuracy"] == result["test_accuracy"]
    assert last["validation_accuracy"] is not None
    again = paceline_here("train", "smoke", *FLAGS, "--run-dir", str(ended), cwd=ended.parent)
    assert "this run is finished" in again.out


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("early") / "run"
    assert not train(run, "--stop-at", "5")["finished"]
    return run


@pytest.mark.slow
def test_early_stopping_survives_a_resume_with_the_same_bits(
    ended: Path, stopped: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    assert train(run)["state_sha256"] == result_of(ended)["state_sha256"]
    assert [each["step"] for each in metrics_of(run) if "validation_loss" in each] == [
        each["step"] for each in metrics_of(ended) if "validation_loss" in each
    ]


@pytest.mark.slow
def test_a_run_killed_between_its_early_end_and_its_result_is_finished_by_the_next_start(
    ended: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(ended, tmp_path / "run"))
    (run / "result.json").unlink()
    result = train(run)
    for name in ("step", "finished", "ended_early", "test_accuracy", "state_sha256"):
        assert result[name] == result_of(ended)[name]


@pytest.mark.slow
def test_a_lost_evaluation_is_named_because_the_end_depends_on_it(
    stopped: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    metrics = run / "metrics.jsonl"
    lines = [line for line in metrics.read_text().splitlines() if json.loads(line)["step"] != 4]
    metrics.write_text("\n".join(lines) + "\n")
    again = paceline_here("train", "smoke", *FLAGS, "--run-dir", str(run), cwd=tmp_path)
    assert again.code == 2
    assert "lacks the evaluation of step 4" in again.err


@pytest.mark.long
def test_parameter_servers_end_early_with_the_same_bits(ended: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", "--workers", "2", "--ps", "1", program=paceline)
    assert result["step"] == result_of(ended)["step"]
    assert result["state_sha256"] == result_of(ended)["state_sha256"]
