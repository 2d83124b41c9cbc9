"""The evaluator of a cluster gives the chief's numbers, during the training or after it."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers import SOON_S, metrics_of, paceline, program, result_of, tf_config, wait_until
from in_process import paceline_here

EVALUATOR = tf_config({"chief": ["127.0.0.1:1"]}, "evaluator")
IN_THE_SPEC = tf_config({"chief": ["127.0.0.1:1"], "evaluator": ["127.0.0.1:2"]}, "evaluator")
MEASURES = ("test_accuracy", "test_loss", "test_top5", "test_count")


def evaluations(run: Path) -> dict[int, dict[str, Any]]:
    records = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert len({record["step"] for record in records}) == len(records), "evaluated twice"
    return {record["step"]: record for record in records}


def chiefs_files(run: Path) -> dict[str, bytes]:
    own = ("evaluations.jsonl", "events/evaluator")
    files = [
        file
        for file in run.rglob("*")
        if file.is_file() and not str(file.relative_to(run)).startswith(own)
    ]
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def test_a_finished_run_is_evaluated_with_the_chiefs_numbers_and_only_once(
    uninterrupted: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    before = chiefs_files(run)
    ended = paceline("train", "smoke", cwd=tmp_path, environment=IN_THE_SPEC)
    assert ended.code == 0, ended
    assert ended.last_line["state_sha256"] == result_of(run)["state_sha256"]
    assert sorted(evaluations(run)) == [20, 24]
    chief = next(record for record in metrics_of(run) if record["step"] == 24)
    assert {name: evaluations(run)[24][name] for name in MEASURES} == {
        name: chief[name] for name in MEASURES
    }
    assert evaluations(run)[24]["test_count"] == 131
    assert list((run / "events/evaluator").iterdir())
    first = (run / "evaluations.jsonl").read_bytes()
    assert paceline_here("train", "smoke", cwd=tmp_path, environment=EVALUATOR).code == 0
    assert (run / "evaluations.jsonl").read_bytes() == first
    assert chiefs_files(run) == before, "the chief's files are the chief's"


@pytest.mark.slow
def test_it_waits_for_the_run_follows_the_training_and_tolerates_pruning(tmp_path: Path) -> None:
    """Two steps between saves and one kept: most checkpoints are gone before they could be read."""
    flags = ("train", "smoke", "--save-every", "0.25", "--data.validation", "16", "--keep", "1")
    with program(*flags, cwd=tmp_path, environment=EVALUATOR) as evaluator:
        trained = paceline_here(*flags, "--run-dir", "run", cwd=tmp_path)
        ended = evaluator.wait()
    assert (trained.code, ended.code) == (0, 0), ended
    run, last = tmp_path / "run", max(evaluations(tmp_path / "run"))
    chief = {record["step"]: record for record in metrics_of(run)}
    assert last == result_of(run)["step"]
    for step, record in evaluations(run).items():
        assert (record["test_count"], record["validation_count"]) == (131, 16)
        measured = {name for name in record if name.startswith(("test_", "validation_"))}
        for name in measured & chief.get(step, {}).keys():
            assert record[name] == chief[step][name]
    assert chief[last]["validation_accuracy"] == evaluations(run)[last]["validation_accuracy"]


def test_an_unfinished_run_is_waited_for_until_a_sigterm(
    stopped_at_5: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(stopped_at_5, tmp_path / "run"))
    with program("train", "smoke", cwd=tmp_path, environment=EVALUATOR) as evaluator:
        wait_until(
            lambda: (
                ((run / "evaluations.jsonl").exists() and len(evaluations(run)) == 2)
                or not evaluator.is_running()
            )
        )
        os.kill(evaluator.pid, signal.SIGTERM)
        ended = evaluator.wait(SOON_S)
    assert ended.code == 143, ended
    assert sorted(evaluations(run)) == [4, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seed", "7"), "the evaluator's experiment differs from run: seed"),
        (("--start-timeout", "15"), "no sign of a checkpoint"),
    ],
    ids=["another-experiment", "no-sign"],
)
def test_what_cannot_go_on_is_told_in_one_line(
    flags: tuple[str, ...], message: str, stopped_at_5: Path, tmp_path: Path
) -> None:
    """In this process, because the start timeout of a new one would count TensorFlow's import."""
    shutil.copytree(stopped_at_5, tmp_path / "run")
    ended = paceline_here("train", "smoke", *flags, cwd=tmp_path, environment=EVALUATOR)
    assert ended.code == 2
    assert message in ended.err.splitlines()[-1]
