"""Trains what docs/results.md lists, and writes its table and its picture.

    python -m benchmarks.results train RUNS DATA_FOLDER [NAME ...] [--seeds N]
    python -m benchmarks.results write

`train` continues where it was interrupted; names are those of ROWS. What is known of a finished run
becomes a file in `benchmarks/measured`, and `write` needs only these. A run that has its file is
left out. CPU time and peak memory over all commands of a run are in its cost.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.drawings import curves
from benchmarks.flops_of_training import training_flops_of
from paceline.extras.report.run_data import read_run
from paceline.kernels.library import ARITHMETIC
from paceline.run_folder.folder import RunFolder
from paceline.versions import machine

DOCS = Path(__file__).parents[1] / "docs"
MEASURED = Path(__file__).parent / "measured"
PICTURED = "Intel Xeon"
"""The CPU of the picture."""
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
OLD = "&nbsp;†"
"""Marks the digest of an older arithmetic."""
FOOTNOTE = (
    "† This run used an older [arithmetic](arithmetic.md), whose bits depended on the CPU.\n"
    "A new run reaches about the same accuracy, but ends at a different digest."
)


@dataclass(frozen=True)
class Row:
    """One line of the table: an experiment, trained with some seeds."""

    name: str
    network: str
    flags: tuple[str, ...]
    seeds: int = 1
    views: tuple[str, ...] = ("none",)
    in_picture: bool = True

    def run_name(self, seed: int) -> str:
        return f"{self.name}-seed{seed}"


def _resnet(depth: int, epochs: int, seeds: int) -> Row:
    recipe = "cifar10-fast" if depth == 20 else f"cifar10-resnet{depth}-fast"
    shorter = ("--epochs", str(epochs), "--schedule.warmup", str(epochs // 5))
    flags = (recipe, *(() if epochs == 40 else shorter))
    return Row(f"resnet{depth}-{epochs}", f"ResNet-{depth}", flags, seeds)


def _variant(plain: Row, name: str, title: str, *flags: str) -> Row:
    """Return a row that differs from another by some flags, to be compared with it."""
    network = f"{plain.network}, {title}"
    return Row(
        f"{plain.name}-{name}", network, (*plain.flags, *flags), plain.seeds, in_picture=False
    )


def _speedrun(epochs: int, seeds: int) -> Row:
    shorter = ("--epochs", str(epochs), "--augment.size-epochs", str(epochs / 4))
    flags = ("cifar10-speedrun", *(() if epochs == 11 else shorter))
    views = ("none", "mirror", "shifts")
    return Row(f"speedrun-{epochs}", "speedrun", flags, seeds, views)


_TEN_EPOCHS = _resnet(20, 10, 3)
ROWS = (
    *(_speedrun(epochs, 3) for epochs in (2, 4, 6, 8)),
    _speedrun(11, 5),
    _TEN_EPOCHS,
    _variant(
        _TEN_EPOCHS,
        "weights",
        "weights every 10 steps",
        *("--sync.method", "weights", "--sync.every", "10"),
    ),
    _variant(
        _TEN_EPOCHS,
        "async",
        "asynchronous",
        *("--sync.method", "async", "--workers", "2", "--ps", "1"),
    ),
    _resnet(20, 20, 1),
    _resnet(20, 40, 1),
    _resnet(56, 20, 1),
    _resnet(56, 40, 1),
)


@dataclass(frozen=True)
class Measured:
    """What is known of a finished run."""

    digest: str
    accuracies: dict[str, float]
    """By kind of views."""
    epochs: float
    petaflops: float
    cpu_minutes: float
    training_minutes: float
    images_per_second: float
    peak_memory_gb: float
    processor: str
    """It decides the minutes, and before version 1 of the arithmetic the digest too."""
    arithmetic: int = 0
    """Version of docs/arithmetic.md; 0 is older."""

    @property
    def family(self) -> str:
        """Return the family of the processor, such as "Intel Xeon"."""
        return " ".join(self.processor.replace("(R)", "").split()[:2])


def train(
    rows: Sequence[Row], runs: Path, data: str, measured: Path = MEASURED, seeds: int = 0
) -> None:
    """Train what has no file in `measured` yet: the first seed of all rows, then the others.

    If `seeds` is not 0, it is the largest number of seeds.
    """
    for seed in range(seeds or max(row.seeds for row in rows)):
        for row in rows:
            file = measured / f"{row.run_name(seed)}.json"
            if seed >= row.seeds or file.exists():
                continue
            print(row.run_name(seed), flush=True)
            folder = runs / row.run_name(seed)
            where = ("--seed", str(seed), "--data.dir", data, "--run-dir", str(folder))
            _pay(folder, "train", *row.flags, *where)
            found = measure(folder, {views: _accuracy(folder, views) for views in row.views})
            file.write_text(json.dumps(asdict(found), indent=2) + "\n")


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


def measure(folder: Path, accuracies: dict[str, float]) -> Measured:
    """Read a finished run."""
    experiment, run = RunFolder(folder).experiment(), read_run(RunFolder(folder))
    cost = json.loads((folder / "cost.json").read_text())
    return Measured(
        digest=run.digest,
        accuracies=accuracies,
        epochs=run.settings["epochs"],
        petaflops=round(training_flops_of(experiment, run.data["train"]) / 1e15, 4),
        cpu_minutes=round(cost["cpu_seconds"] / 60, 1),
        training_minutes=round(run.training_minutes, 1),
        images_per_second=round(run.last("images_per_second") or 0),
        peak_memory_gb=round(cost["peak_memory_mb"] / 1000, 1),
        processor=machine()["cpu"],
        arithmetic=ARITHMETIC,
    )


Finished = dict[Row, list[Measured]]
"""The rows that have runs, and these in the order of their seeds."""


def read_finished(rows: Sequence[Row] = ROWS, measured: Path = MEASURED) -> Finished:
    finished = Finished()
    for row in rows:
        files = (measured / f"{row.run_name(seed)}.json" for seed in range(row.seeds))
        if runs := [Measured(**json.loads(file.read_text())) for file in files if file.exists()]:
            finished[row] = runs
    return finished


def _accuracies(runs: Sequence[Measured], views: str) -> list[float]:
    return [run.accuracies[views] for run in runs]


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return (
        f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f}, n={len(values)})"
    )


def table(finished: Finished) -> str:
    """Return the table in Markdown: each row has its command and its digests."""
    head = ["network and command", "accuracy", "with test-time augmentation", "PFLOP"]
    head += ["CPU minutes", "minutes", "memory", "CPU", "digests, seed 0 first"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row, runs in finished.items():
        views = [
            f"{name} {_spread(_accuracies(runs, name))}" for name in row.views if name != "none"
        ]
        digests = " ".join(f"`{run.digest[:16]}`{'' if run.arithmetic else OLD}" for run in runs)
        cells = (
            f"{row.network}, {runs[0].epochs:g} epochs<br>`paceline train {' '.join(row.flags)}`",
            _spread(_accuracies(runs, "none")),
            "<br>".join(views),
            f"{runs[0].petaflops:.3f}",
            f"{_cpu_minutes(runs):.1f}",
            f"{statistics.median(run.training_minutes for run in runs):.1f}",
            f"{max(run.peak_memory_gb for run in runs):.1f} GB",
            ", ".join(sorted({run.family for run in runs})),
            "different in each run" if "async" in row.flags else digests,
        )
        lines.append(f"| {' | '.join(cells)} |")
    if any(OLD in line for line in lines):
        lines += ["", FOOTNOTE]
    return "\n".join(lines) + "\n"


def _cpu_minutes(runs: Sequence[Measured]) -> float:
    return statistics.mean(run.cpu_minutes for run in runs)


def picture(finished: Finished) -> str:
    """Return the accuracy over the CPU minutes of a training as SVG, a line for each network.

    Minutes of different CPUs cannot be compared, so it shows the runs of one.
    """
    lines = dict[str, list[tuple[float, float]]]()
    for row, runs in finished.items():
        if row.in_picture and runs[0].family == PICTURED:
            accuracy = statistics.mean(_accuracies(runs, "none"))
            lines.setdefault(row.network, []).append((_cpu_minutes(runs), accuracy))
    title = f"Test accuracy on CIFAR-10 over CPU minutes (2 vCPUs, {PICTURED})"
    return curves(title, lines, "CPU minutes", (0.88, 0.90, 0.92, 0.94))


def write() -> None:
    """Put the table into docs/results.md and the picture beside it."""
    finished, page = read_finished(), DOCS / "results.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + table(finished) + END + rest.partition(END)[2])
    (DOCS / "images" / "results.svg").write_text(picture(finished))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results")
    verbs = parser.add_subparsers(dest="verb", required=True)
    trains = verbs.add_parser("train", help="train what is missing")
    trains.add_argument("runs", type=Path)
    trains.add_argument("data")
    trains.add_argument("names", nargs="*", metavar="name")
    trains.add_argument("--seeds", type=int, default=0, help="at most so many of each row")
    verbs.add_parser("write", help="write docs/results.md and its picture")
    options = parser.parse_args()
    if options.verb == "write":
        write()
        return
    if unknown := set(options.names) - {row.name for row in ROWS}:
        parser.error(f"there is no {', '.join(unknown)}; see ROWS")
    rows = [row for row in ROWS if not options.names or row.name in options.names]
    train(rows, options.runs, options.data, seeds=options.seeds)


if __name__ == "__main__":
    main()
