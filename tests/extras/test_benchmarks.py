"""The benchmarks can be started, and the published tables are made from what was measured."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from benchmarks import results
from benchmarks.flops import forward_multiply_adds, resnet_products, training_flops
from benchmarks.flops_of_training import training_flops_of
from benchmarks.harness import Measured, Turn
from benchmarks.suites import SUITES, load
from benchmarks.summary import Quartiles, quartiles, ratio

from in_process import paceline_here
from paceline.experiment.recipes.table import get_recipe

ROW = results.Row("tiny", "ResNet-20", ("smoke",), seeds=3, views=("none", "mirror"))


def test_every_suite_of_the_table_can_be_loaded() -> None:
    assert all(callable(load(name)) for name in SUITES)


def test_published_ratios_are_medians_of_the_ratios_within_rounds() -> None:
    def measured(name: str, speeds: list[float]) -> Measured:
        turns = tuple(Turn(images=speed, wall_s=1.0, cpu_s=2.0) for speed in speeds)
        return Measured(name, 1, turns, 0.0)

    ours, theirs = measured("ours", [200, 20, 300]), measured("theirs", [100, 10, 100])
    assert ratio(ours, theirs) == Quartiles(2, 2, 2.5)
    assert quartiles([5, 1, 4, 2, 3]) == Quartiles(2, 3, 4)


@pytest.mark.parametrize(
    ("depth", "parameters_of_paper_m", "mega"), [(20, 0.27, 40.6), (56, 0.85, 125.5)]
)
def test_multiply_adds_of_the_resnets(
    depth: int, parameters_of_paper_m: float, mega: float
) -> None:
    weights = sum(p.kernel**2 * p.channels_in * p.channels_out for p in resnet_products(depth))
    assert weights / 1e6 == pytest.approx(parameters_of_paper_m, abs=0.005)
    assert forward_multiply_adds(depth) / 1e6 == pytest.approx(mega, abs=0.1)
    assert training_flops(depth) == 6 * forward_multiply_adds(depth)


def test_operations_counted_by_the_model_are_those_counted_by_hand() -> None:
    experiment = get_recipe("cifar10-fast")
    images = experiment.epochs * (50_000 // experiment.global_batch_size)
    counted = training_flops_of(experiment, 50_000) / (images * experiment.global_batch_size)
    assert counted == pytest.approx(training_flops(20), rel=1e-3)


def test_the_page_and_its_picture_are_made_from_what_was_measured() -> None:
    finished = results.read_finished()
    assert results.table(finished) in (results.DOCS / "results.md").read_text()
    assert results.picture(finished) == (results.DOCS / "images" / "results.svg").read_text()
    names = {row.run_name(seed) for row in results.ROWS for seed in range(row.seeds)}
    assert {file.stem for file in results.MEASURED.glob("*.json")} <= names


@pytest.mark.slow
def test_the_table_lists_the_finished_runs_with_accuracy_cost_and_digest(tmp_path: Path) -> None:
    run = tmp_path / ROW.run_name(0)
    paceline_here("train", "smoke", "--run-dir", str(run), cwd=tmp_path)
    (run / "cost.json").write_text(json.dumps({"cpu_seconds": 90, "peak_memory_mb": 1200}))
    result = json.loads((run / "result.json").read_text())
    accuracy = results._accuracy(run, "none")
    assert accuracy == result["test_accuracy"]
    found = results.measure(run, {"none": accuracy, "mirror": 0.7})
    (tmp_path / f"{run.name}.json").write_text(json.dumps(asdict(found)))
    never_run = replace(ROW, name="other")
    table = results.table(results.read_finished([ROW, never_run], tmp_path))
    for text in (f"{accuracy:.4f}", "mirror 0.7000", "| 1.5 |", result["state_sha256"][:16]):
        assert text in table
    assert "other" not in table
