"""`paceline train` as a person meets it: runs, mistakes that a worker finds, and a terminal."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import (
    Ended,
    assert_refused,
    files_in,
    losses_of,
    metrics_of,
    paceline,
    program,
    result_of,
    wait_until,
    write_own_code,
)
from in_process import paceline_here
from paceline.experiment.recipes.table import get_recipe

RESULT_FIELDS = [
    *("step", "finished", "test_accuracy", "test_loss", "images_per_second", "state_sha256"),
    *("bits", "chain", "run_dir"),
]


def smoke(*flags: str, cwd: Path) -> Ended:
    return paceline_here("train", "smoke", *flags, cwd=cwd)


def quick(*flags: str, cwd: Path, run: Callable[..., Ended] = paceline_here) -> Ended:
    """A whole run of a few steps, with a small model that compiles fast."""
    write_own_code(cwd)
    own = () if "--model.build" in flags else ("--model.build", "own.py:build_model")
    few = ("--steps", "3", "--replicas", "2", "--run-dir", "run")
    return run("train", "smoke", *few, *own, *flags, cwd=cwd)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("--devices gpu", ["devices is gpu", "no GPU", "--devices cpu"]),
        ("--threads-per-replica 2", ["threads-per-replica is 2", "--threads-per-replica 1"]),
        ("--dry-run --data.train-size 31", ["31 training examples", "global batch of 32"]),
        ("--model.build nowhere:build", ["nowhere:build", "there is no module 'nowhere'"]),
        (
            "--model.build own.py:build_modl",
            ["there is no function 'build_modl'", "did you mean 'build_model'?"],
        ),
        (
            "--model.build own.py:build_model_of_wrong_shape",
            ["own.py:build_model_of_wrong_shape", "(None, 11)", "(None, 10)"],
        ),
        ("--data.source cifar10", ["--data.dir", "paceline data fetch cifar10"]),
        (
            "--actions own.py:write_dwn",
            ["there is no function 'write_dwn'", "did you mean 'write_down'?"],
        ),
    ],
)
def test_a_mistake_that_a_worker_finds_gets_one_line_and_leaves_nothing(
    flags: str, parts: list[str], here: Path, own_code: Path
) -> None:
    assert_refused(smoke(*flags.split(), cwd=here), *parts)
    assert files_in(here) <= {"own.py", "runs"}


def test_an_action_that_raises_is_named_with_its_error_and_its_line(
    here: Path, own_code: Path
) -> None:
    line = 1 + next(
        n for n, text in enumerate(own_code.read_text().splitlines()) if "nothing here" in text
    )
    ended = quick("--actions", "own.py:forget", cwd=here)
    assert_refused(
        ended,
        "the action own.py:forget failed at step 1: KeyError: 'nothing here'",
        f"{own_code}:{line}",
    )
    assert "Traceback" in (here / "run/worker-0.log").read_text()


def test_a_loss_that_is_not_finite_names_its_step_and_saves_nothing_of_it(here: Path) -> None:
    ended = quick(
        "--schedule.rate", "1e30", "--schedule.name", "constant", "--schedule.warmup", "0", cwd=here
    )
    assert_refused(ended, "--schedule.rate", "diverged")
    found = re.search(r"the loss of step (\d+) is (nan|inf)", ended.err)
    assert found
    step = int(found[1])
    assert 2 <= step <= 3
    assert not list((here / "run/checkpoints").glob("*"))


def test_a_signal_before_training_began_is_no_failure(here: Path) -> None:
    with program("train", "smoke", "--run-dir", "run", cwd=here) as running:
        wait_until(lambda: (here / "run/worker-0.log").exists())
        os.kill(running.pid, signal.SIGTERM)
        ended = running.wait()
    assert ended.code == 143, ended
    assert ended.err == "stopped by SIGTERM; the same command continues from here\n"


def test_a_dry_run_prints_derived_numbers_and_layers_and_creates_nothing(here: Path) -> None:
    ended = smoke("--dry-run", "--json", cwd=here)
    assert (ended.code, ended.err) == (0, "")
    first, _, heading, *layers, as_json = ended.out.splitlines()
    for part in (
        "272 train, 131 test examples of 10 classes",
        "4 replicas x 8 = global batch 32",
        "8 steps per epoch, 24 in all",
    ):
        assert part in first
    assert heading.split() == ["layer", "kind", "output", "parameters"]
    numbers = json.loads(as_json)
    assert (numbers["total_steps"], numbers["examples"]["train"]) == (24, 272)
    total = sum(int(line.split()[-1].replace(",", "")) for line in layers)
    assert total >= numbers["parameters"] > 1000
    assert f"{numbers['parameters']:,} parameters" in first
    assert any("32 x 32 x 4" in line for line in layers)
    assert files_in(here) == set()


@pytest.mark.slow
def test_a_run_leaves_what_the_manual_says(here: Path, own_code: Path) -> None:
    flags = ("--json", "--actions", "own.py:write_down", "--keep", "1")
    ended = quick(*flags, cwd=here, run=paceline)
    assert (ended.code, ended.err) == (0, "")
    *_, last, as_json = ended.out.splitlines()
    result = json.loads(as_json)
    assert list(result) == RESULT_FIELDS
    shown = [name for name in RESULT_FIELDS if name not in ("bits", "chain")]
    assert list(Ended(0, last, "").last_line) == shown
    assert (result["step"], result["finished"]) == (3, True)
    assert 0 <= result["test_accuracy"] <= 1
    assert result["images_per_second"] > 0
    assert re.fullmatch("[0-9a-f]{64}", result["state_sha256"])
    assert result_of(here / "run") | {"run_dir": "run"} == result
    names = {"config.json", "metrics.jsonl", "result.json", "worker-0.log"}
    assert names | {"checkpoints/step-00000003.safetensors"} <= files_in(here / "run")
    assert [step for step, _ in losses_of(here / "run")] == [1, 2, 3]
    assert json.loads((here / "run/config.json").read_text())["experiment"]["steps"] == 3
    records = {str(r["step"]): str(round(r["loss"], 4)) for r in metrics_of(here / "run")}
    assert (
        dict(line.split() for line in (here / "written-down.txt").read_text().splitlines())
        == records
    )


def test_the_same_command_finds_its_run_and_goes_no_step_beyond_stop_at(
    stopped_at_5: Path, here: Path
) -> None:

    folder = Path("runs") / f"smoke-{get_recipe('smoke').digest()}"
    shutil.copytree(stopped_at_5, here / folder)
    ended = smoke("--stop-at", "5", "--keep", "3", cwd=here)
    assert ended.code == 0
    assert ended.err.splitlines()[-1] == (
        "stopped after step 5; the same command without --stop-at continues"
    )
    assert ended.last_line["run_dir"] == str(folder)
    for name in ("step", "finished", "state_sha256"):
        assert result_of(here / folder)[name] == result_of(stopped_at_5)[name]


def test_a_stopped_run_reports_its_last_evaluation(here: Path) -> None:
    ended = quick("--steps", "5", "--evaluate-every", "0.25", "--stop-at", "3", cwd=here)
    assert ended.code == 0, ended.err
    (known,) = [each for each in metrics_of(here / "run") if "test_accuracy" in each]
    result = result_of(here / "run")
    assert (result["step"], result["evaluated_step"], known["step"]) == (3, 2, 2)
    assert (result["test_accuracy"], result["test_loss"]) == (
        known["test_accuracy"],
        known["test_loss"],
    )


@pytest.mark.slow
def test_data_and_model_of_ones_own_are_learned(here: Path, own_code: Path) -> None:
    own = "--data.build own.py:build_data --augment.padding 0 --steps 20 --schedule.rate 0.02"
    ended = quick(*own.split(), "--global-batch-size", "16", cwd=here)
    assert ended.code == 0, ended.err
    assert "96 train, 7 test examples of 3 classes" in ended.out
    assert float(ended.last_line["test_accuracy"]) > 0.6
