"""The tool that trains what docs/results.md lists, and makes its table and its picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from benchmarks import results
from benchmarks.flops import training_flops
from benchmarks.flops_of_training import training_flops_of

from in_process import paceline_here
from paceline.experiment.recipes.table import get_recipe

ROW = results.Row("tiny", "ResNet-20", ("smoke",), seeds=3, views=("none", "mirror"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs of two seeds, and with what was measured of them."""
    folder = tmp_path_factory.mktemp("results")
    for seed in range(2):
        run = folder / ROW.run_name(seed)
        paceline_here("train", "smoke", "--seed", str(seed), "--run-dir", str(run), cwd=folder)
        (run / "cost.json").write_text(json.dumps({"cpu_seconds": 90, "peak_memory_mb": 1200}))
        found = results.measure(run, {"none": 0.5 + 0.1 * seed, "mirror": 0.7})
        (folder / f"{run.name}.json").write_text(json.dumps(asdict(found)))
    return folder


def test_the_table_has_means_costs_and_digests_of_the_finished_runs(runs: Path) -> None:
    table = results.table(results.read_finished([ROW], runs))
    digest = json.loads((runs / "tiny-seed1" / "result.json").read_text())["state_sha256"]
    assert "0.5500 (0.5000 to 0.6000, n=2)" in table
    assert "mirror 0.7000 (0.7000 to 0.7000, n=2)" in table
    assert "| 1.5 |" in table  # CPU minutes
    assert f"`{digest[:16]}`" in table


def test_the_picture_has_a_line_for_each_network(runs: Path) -> None:
    row, (one, two) = next(iter(results.read_finished([ROW], runs).items()))
    finished = [replace(one, processor="AMD EPYC 9"), replace(two, processor="Intel(R) Xeon(R) 8")]
    assert "AMD EPYC, Intel Xeon |" in results.table({row: finished})
    drawn = ElementTree.fromstring(results.picture({row: finished}))
    texts = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"ResNet-20", "PFLOP"} <= texts


def test_the_page_and_its_picture_are_made_from_what_was_measured() -> None:
    finished = results.read_finished()
    assert results.table(finished) in (results.DOCS / "results.md").read_text()
    assert results.picture(finished) == (results.DOCS / "images" / "results.svg").read_text()


def test_every_measured_run_belongs_to_a_row() -> None:
    names = {row.run_name(seed) for row in results.ROWS for seed in range(row.seeds)}
    assert {file.stem for file in results.MEASURED.glob("*.json")} <= names


def test_the_accuracy_of_a_run_is_that_of_its_training(runs: Path) -> None:
    result = json.loads((runs / "tiny-seed0" / "result.json").read_text())
    assert results._accuracy(runs / "tiny-seed0", "none") == result["test_accuracy"]


def test_what_was_measured_is_not_trained_again(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = list[str]()

    def pay(folder: Path, *_: str) -> None:
        trained.append(folder.name)
        raise SystemExit  # before it is evaluated

    monkeypatch.setattr(results, "_pay", pay)
    with pytest.raises(SystemExit):
        results.train([ROW], tmp_path, "data", runs)
    assert trained == ["tiny-seed2"]


def test_a_row_without_a_finished_run_is_left_out(tmp_path: Path) -> None:
    assert results.read_finished([ROW], tmp_path) == {}


def test_operations_counted_by_the_model_are_those_counted_by_hand() -> None:
    experiment = get_recipe("cifar10-fast")
    images = experiment.epochs * (50_000 // experiment.global_batch_size)
    counted = training_flops_of(experiment, 50_000) / (images * experiment.global_batch_size)
    assert counted == pytest.approx(training_flops(20), rel=1e-3)


def test_small_images_and_frozen_filters_count_less() -> None:
    """8 epochs of the published network, all at full size, have 0.28 PFLOP."""
    recipe = get_recipe("cifar10-speedrun")
    shorter = replace(recipe, epochs=8, data=replace(recipe.data, size_epochs=(2.0,)))
    counted = training_flops_of(shorter, 50_000) / 1e15
    assert 0.2 < counted < 0.32
