"""Trains what docs/results.md lists, and writes its table and its picture from the run folders.

    python -m benchmarks.results train RUNS DATA_FOLDER [NAME ...]
    python -m benchmarks.results write RUNS

`train` continues where it was interrupted and leaves out what is finished; names are those of ROWS.
A run gets a file cost.json: its CPU time and peak memory over all commands. The test set is looked
at once for each run and kind of views, when it is finished.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.flops_of_training import training_flops_of
from paceline.config.experiment import Experiment
from paceline.results.report.charts import Chart, Drawing, Line
from paceline.results.report.page import render_svg
from paceline.results.report.run_data import RunData, read_run
from paceline.run_folder.folder import RunFolder

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
CPU_RATIO_TO_PYTORCH = 2.30
"""CPU time per image of ResNet-20, PyTorch's DDP to Paceline: `python -m benchmarks resnet20`."""


@dataclass(frozen=True)
class Row:
    """One line of the table: an experiment, trained with some seeds."""

    name: str
    network: str
    flags: tuple[str, ...]
    seeds: int = 1
    views: tuple[str, ...] = ("none",)
    in_picture: bool = True

    def folder(self, runs: Path, seed: int) -> Path:
        return runs / f"{self.name}-seed{seed}"

    def finished(self, runs: Path) -> Iterator[Path]:
        for seed in range(self.seeds):
            if (self.folder(runs, seed) / "views.json").exists():
                yield self.folder(runs, seed)


def _resnet(depth: int, epochs: int, seeds: int) -> Row:
    recipe = "cifar10-fast" if depth == 20 else f"cifar10-resnet{depth}-fast"
    shorter = ("--epochs", str(epochs), "--schedule.warmup", str(epochs // 5))
    flags = (recipe, *(() if epochs == 40 else shorter))
    return Row(f"resnet{depth}-{epochs}", f"ResNet-{depth}", flags, seeds)


def _other_sync(name: str, title: str, *flags: str) -> Row:
    """Return ResNet-20 in 10 epochs with another way to share what replicas learn."""
    plain = _resnet(20, 10, 3)
    return Row(f"{plain.name}-{name}", title, (*plain.flags, *flags), plain.seeds, in_picture=False)


def _speedrun(epochs: int, seeds: int) -> Row:
    shorter = ("--epochs", str(epochs), "--data.size-epochs", str(epochs / 4))
    flags = ("cifar10-speedrun", *(() if epochs == 11 else shorter))
    views = ("none", "mirror", "shifts")
    return Row(f"speedrun-{epochs}", "speedrun", flags, seeds, views)


ROWS = (
    _speedrun(2, 3),
    _speedrun(4, 3),
    _speedrun(6, 3),
    _speedrun(8, 3),
    _speedrun(11, 5),
    _resnet(20, 10, 3),
    _other_sync(
        "weights",
        "ResNet-20, weights every 10 steps",
        *("--sync.method", "weights", "--sync.every", "10"),
    ),
    _other_sync(
        "async",
        "ResNet-20, asynchronous",
        *("--sync.method", "async", "--workers", "2", "--ps", "1"),
    ),
    _resnet(20, 20, 1),
    _resnet(20, 40, 1),
    _resnet(56, 20, 1),
    _resnet(56, 40, 1),
)


def train(row: Row, runs: Path, data: str) -> None:
    """Train the seeds of a row that are not finished yet, and evaluate each once."""
    for seed in range(row.seeds):
        folder = row.folder(runs, seed)
        if (folder / "views.json").exists():
            continue
        print(f"{row.name}, seed {seed}", flush=True)
        where = ("--seed", str(seed), "--data.dir", data, "--run-dir", str(folder))
        _pay(folder, "train", *row.flags, *where)
        accuracies = {views: _accuracy(folder, views) for views in row.views}
        (folder / "views.json").write_text(json.dumps(accuracies))


def _pay(folder: Path, *arguments: str) -> None:
    """Run a command, and add its CPU time and memory to those of the run."""
    process = subprocess.Popen([sys.executable, "-m", "paceline", *arguments])
    _, status, used = os.wait4(process.pid, 0)
    file = folder / "cost.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    cpu = before.get("cpu_seconds", 0.0) + used.ru_utime + used.ru_stime
    peak = max(before.get("peak_memory_mb", 0), used.ru_maxrss // 1024)
    if folder.exists():
        file.write_text(json.dumps({"cpu_seconds": round(cpu, 1), "peak_memory_mb": peak}))
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"paceline {' '.join(arguments)} ended with exit code {code}")


def _accuracy(folder: Path, views: str) -> float:
    command = ["eval", str(folder), "--checkpoint", "last", "--views", views, "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "paceline", *command], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(ended.stdout.splitlines()[-1])["accuracy"]


@dataclass(frozen=True)
class Measured:
    """What the run folders of a row say."""

    row: Row
    experiment: Experiment
    runs: list[RunData]
    accuracies: dict[str, list[float]]
    cpu_minutes: float
    peak_memory_gb: float

    @property
    def petaflops(self) -> float:
        return training_flops_of(self.experiment, self.runs[0].data["train"]) / 1e15

    @property
    def plain(self) -> float:
        return statistics.mean(self.accuracies["none"])


def measure(row: Row, runs: Path) -> Measured | None:
    """Read the finished runs of a row; None if there are none."""
    folders = list(row.finished(runs))
    if not folders:
        return None
    views = [_read(folder, "views.json") for folder in folders]
    costs = [_read(folder, "cost.json") for folder in folders]
    return Measured(
        row,
        RunFolder(folders[0]).experiment(),
        [read_run(RunFolder(folder)) for folder in folders],
        {name: [each[name] for each in views] for name in row.views},
        statistics.mean(cost["cpu_seconds"] for cost in costs) / 60,
        max(cost["peak_memory_mb"] for cost in costs) / 1000,
    )


def _read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return (
        f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f}, n={len(values)})"
    )


def table(rows: Sequence[Measured]) -> str:
    """Return the table in Markdown, with commands and digests below it."""
    head = ("network", "accuracy", "with views", "PFLOP", "CPU minutes", "training minutes")
    head += ("images/s", "memory")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for each in rows:
        best = [
            f"{name} {_spread(values)}"
            for name, values in each.accuracies.items()
            if name != "none"
        ]
        minutes = statistics.median(run.training_minutes for run in each.runs)
        speed = statistics.median(run.images_per_second or 0 for run in each.runs)
        epochs = each.runs[0].settings["epochs"]
        cells = (
            f"{each.row.network}, {epochs:g} epochs",
            _spread(each.accuracies["none"]),
            "<br>".join(best),
            f"{each.petaflops:.3f}",
            f"{each.cpu_minutes:.1f}",
            f"{minutes:.1f}",
            f"{speed:,.0f}",
            f"{each.peak_memory_gb:.1f} GB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| command | digests, seed 0 first |", "|---|---|"]
    for each in rows:
        digests = " ".join(f"`{run.digest[:16]}`" for run in each.runs)
        if each.experiment.sync.method == "async":
            digests = "others in each run"
        lines.append(f"| `paceline train {' '.join(each.row.flags)}` | {digests} |")
    return "\n".join(lines) + "\n"


def picture(rows: Sequence[Measured]) -> str:
    """Return the accuracy over CPU minutes as SVG, a line for each network."""
    rows = [each for each in rows if each.row.in_picture]
    names = list(dict.fromkeys(each.row.network for each in rows))
    lines = [_line(name, [each for each in rows if each.row.network == name]) for name in names]
    slower = [
        (x * CPU_RATIO_TO_PYTORCH, y)
        for line in lines
        if line[0] == "ResNet-20"
        for x, y in line[1]
    ]
    lines += [("PyTorch", slower)] if slower else []
    drawn = [Line(name, points, i, marked=True) for i, (name, points) in enumerate(lines)]
    chart = Chart("test accuracy", drawn, "CPU minutes", lambda value: f"{value:.0%}")
    return render_svg(Drawing(chart))


def _line(name: str, rows: Sequence[Measured]) -> tuple[str, list[tuple[float, float]]]:
    return name, sorted((each.cpu_minutes, each.plain) for each in rows)


def write(runs: Path) -> None:
    """Put the table into docs/results.md and the picture beside it."""
    rows = [measured for row in ROWS if (measured := measure(row, runs))]
    page = DOCS / "results.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2])
    (DOCS / "images" / "results.svg").write_text(picture(rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results")
    verbs = parser.add_subparsers(dest="verb", required=True)
    trains = verbs.add_parser("train", help="train what is missing")
    writes = verbs.add_parser("write", help="write docs/results.md and its picture")
    for each in (trains, writes):
        each.add_argument("runs", type=Path)
    trains.add_argument("data")
    trains.add_argument("names", nargs="*", metavar="name")
    options = parser.parse_args()
    if unknown := set(getattr(options, "names", ())) - {row.name for row in ROWS}:
        parser.error(f"there is no {', '.join(unknown)}; see ROWS")
    if options.verb == "write":
        write(options.runs)
    else:
        for row in ROWS:
            if not options.names or row.name in options.names:
                train(row, options.runs, options.data)


if __name__ == "__main__":
    main()
