"""Run folders for the tests of the report, with made-up numbers. Not a test itself."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.experiment.experiment import Experiment
from paceline.experiment.recipes.table import get_recipe
from paceline.extras.report.report_page import write_report
from paceline.run_folder.folder import RunFolder
from paceline.storage.files import sealed

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def make_run(
    path: Path,
    experiment: Experiment | None = None,
    records: int = 60,
    classes: tuple[str, ...] = ("cat", "dog", "bird"),
    side: int = 32,
    examples: int = 200,
    seed: int = 0,
) -> Path:
    """A run folder as a training leaves it, with made-up numbers: written by the same functions."""
    random, run = np.random.default_rng(seed), RunFolder(path)
    experiment = experiment or replace(get_recipe("shapes"), seed=seed)
    run.open(experiment, {"train": 20_000, "test": examples, "classes": list(classes)})
    steps, lines = [936 * (i + 1) // records for i in range(records)], list[str]()
    run.append_start(0, "local", 1)
    for i, step in enumerate(steps):
        epoch = step / 156
        record = {"step": step, "epoch": epoch, "learning_rate": 0.1}
        record |= {"loss": 3.0 * 0.5**epoch + random.uniform(0, 0.05)}
        record |= {"accuracy": 1 - 0.9 * 0.5**epoch, "images_per_second": random.uniform(400, 500)}
        if i % max(1, records // 6) == 0 or step == 936:
            record["test_loss"] = record["loss"] * 1.1
            record["test_accuracy"] = record["accuracy"] * 0.97
        lines.append(json.dumps(sealed(record)) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))
    run.append_start(500, "local", 2)
    labels, others = (random.integers(0, len(classes), examples) for _ in range(2))
    predictions = np.where(random.random(examples) < 0.7, labels, others)
    worst = np.flatnonzero(labels != predictions)[:24]
    shown = {"labels": labels, "predictions": predictions, "worst": worst}
    shown["pictures"] = random.integers(0, 256, (len(worst), side, side, 3), dtype=np.uint8)
    shown["probabilities"] = random.random(examples).astype(np.float32)
    run.write_predictions({"step": 936, "split": "test"} | shown)
    result = {"step": 936, "finished": True, "test_accuracy": 0.91, "test_loss": 0.3}
    run.write_result(result | {"images_per_second": 450.0, "state_sha256": f"{seed:064x}"})
    return path


def report(*runs: Path, out: Path, force: bool = False) -> str:
    assert write_report([str(run) for run in runs], out, force) == []
    return out.read_text()


def make_folder(
    root: Path, name: str, experiment: Experiment, finished: bool | None = None, accuracy: float = 0
) -> RunFolder:
    """A run folder with one line of metrics, for tables and lists of runs."""
    run = RunFolder(root / name)
    run.open(experiment, {"train": 1, "test": 1, "classes": ["a"], "image_shape": None})
    scores = {"test_accuracy": accuracy, "test_loss": 1 - accuracy}
    run.metrics.append({"step": 7, "images_per_second": 100.0} | scores)
    if finished is not None:
        run.write_result({"step": 7, "finished": finished})
    return run
