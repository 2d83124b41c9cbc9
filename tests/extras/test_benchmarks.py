"""The benchmarks can be started, and the published tables are made from what was measured."""

from __future__ import annotations

import pytest
from benchmarks import results
from benchmarks.flops import training_flops
from benchmarks.flops_of_training import training_flops_of
from benchmarks.harness import Measured, Turn
from benchmarks.suites import SUITES, load
from benchmarks.summary import Quartiles, quartiles, ratio

from paceline.experiment.recipes.table import get_recipe


def test_every_suite_of_the_table_can_be_loaded() -> None:
    assert all(callable(load(name)) for name in SUITES)


def test_published_ratios_are_medians_of_the_ratios_within_rounds() -> None:
    def measured(name: str, speeds: list[float]) -> Measured:
        turns = tuple(Turn(images=speed, wall_s=1.0, cpu_s=2.0) for speed in speeds)
        return Measured(name, 1, turns, 0.0)

    ours, theirs = measured("ours", [200, 20, 300]), measured("theirs", [100, 10, 100])
    assert ratio(ours, theirs) == Quartiles(2, 2, 2.5)
    assert quartiles([5, 1, 4, 2, 3]) == Quartiles(2, 3, 4)


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
