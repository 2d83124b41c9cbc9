"""The cost of several workers on one machine: two workers of one core, one process on two."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import processes
from benchmarks.contender_paceline import MEAN, REPLICAS
from benchmarks.contender_workers import NETWORK, SHARED
from benchmarks.harness import ROOT, Contender, ContenderFailed, Measured, clean_environment
from benchmarks.images import cifar10_folder
from benchmarks.neighbors import free_addresses
from benchmarks.suite_startup import paceline
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles, ratio, rows

START_REPEATS = 3
_TIMEOUT_S = 120.0


WAYS = {
    "sockets": (SHARED, {}),
    "network": (NETWORK, {}),
    "plain ring": (NETWORK, {MEAN: "ring"}),
    "gather": (NETWORK, {MEAN: "gather"}),
}
"""How the workers of one machine exchange vectors: as `--workers N` does, as those of several
machines, by TensorFlow's all-reduce, and as Paceline did before."""


def _compare(
    depth: int, workers: int, replicas: int, ways: Sequence[str], settings: Settings
) -> dict[str, Measured]:
    """Measure workers against one process, each way of exchanging vectors."""
    module, variable = (sys.executable, "-m"), {REPLICAS: str(replicas)}
    with cifar10_folder() as (folder, _):
        of_model = (str(depth), folder)
        found = [Contender("one process", (*module, "benchmarks.contender_paceline", *of_model))]
        for way in ways:
            host, more = WAYS[way]
            hosts = [word for address in free_addresses(workers) for word in (host, address)]
            command = (*module, "benchmarks.contender_workers", *of_model, "1", *hosts)
            found.append(Contender(way, command, more))
        found = [replace(each, environment={**variable, **each.environment}) for each in found]
        return settings.alternate(found)


def _comparison(
    cases: Sequence[tuple[int, int, int, Sequence[str]]], title: str, settings: Settings
) -> SuiteResult:
    """Measure cases of (depth, workers, replicas, ways)."""
    figures, tables = list[Figure](), dict[str, Measured]()
    for depth, workers, replicas, ways in cases:
        measured = _compare(depth, workers, replicas, ways, settings)
        what = f"ResNet-{depth}, {replicas} replicas, {workers} workers"
        figures += [
            Figure(
                f"images/s of {what} ({way}) to one process",
                ratio(measured[way], measured["one process"]),
                "x",
            )
            for way in ways
        ]
        tables |= {f"{what}: {name}": each for name, each in measured.items()}
    baseline = next(iter(tables))
    return SuiteResult(title, figures, [], baseline, rows(tables, baseline))


def measure_more(settings: Settings) -> SuiteResult:
    """Measure more workers than cores, and an uneven tree, against one process."""
    cases = [(56, 4, 4, ("sockets", "network", "gather")), (56, 3, 12, ("sockets", "network"))]
    return _comparison(cases, "More workers on one machine, CIFAR-10", settings)


def measure_plain(settings: Settings) -> SuiteResult:
    """Measure trainings with the exact mean and with a plain all-reduce, over the network."""
    cases = [(20, workers, 12, ("network", "plain ring")) for workers in (2, 3, 4)]
    return _comparison(cases, "The exact mean and a plain all-reduce, CIFAR-10", settings)


def contenders(folder: str) -> list[Contender]:
    def of(depth: int) -> list[Contender]:
        module, of_model = (sys.executable, "-m"), (str(depth), folder)
        hosts = [word for address in free_addresses(2) for word in (SHARED, address)]
        return [
            Contender(
                f"resnet{depth}-one-process", (*module, "benchmarks.contender_paceline", *of_model)
            ),
            Contender(
                f"resnet{depth}-two-workers",
                (*module, "benchmarks.contender_workers", *of_model, "1", *hosts),
            ),
        ]

    return [*of(20), *of(56)]


def seconds_to_first_step(folder: str, workers: int) -> float:
    """Return the seconds from the command to the first line of metrics.jsonl of a new run."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent:
        metrics, mark = Path(parent, "run", "metrics.jsonl"), processes.new_mark()
        flags = [
            "--data.dir",
            folder,
            "--run-dir",
            str(metrics.parent),
            "--workers",
            str(workers),
            "--replicas",
            "2",
        ]
        start = time.perf_counter()
        command = [paceline(), "train", "cifar10-resnet20", *flags]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, env=clean_environment(mark), cwd=ROOT
        )
        try:
            while not metrics.exists():
                if process.poll() is not None or time.perf_counter() - start > _TIMEOUT_S:
                    raise ContenderFailed(
                        f"{' '.join(command)} made no step (exit code: {process.poll()})"
                    )
                time.sleep(0.02)
            return time.perf_counter() - start
        finally:
            processes.kill(mark)
            process.wait()


def measure(settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        measured = settings.alternate(contenders(folder))
        starts: dict[int, list[float]] = {1: [], 2: []}
        for number in range(START_REPEATS):
            settings.tell(f"command to first step, {number + 1} of {START_REPEATS}")
            for workers in sorted(starts, reverse=bool(number % 2)):
                starts[workers].append(seconds_to_first_step(folder, workers))
    speeds = [
        Figure(
            f"images/s of ResNet-{depth}, two workers of one core to one process on two",
            ratio(measured[f"resnet{depth}-two-workers"], measured[f"resnet{depth}-one-process"]),
            "x",
        )
        for depth in (20, 56)
    ]
    ratios = quartiles(two / one for one, two in zip(starts[1], starts[2], strict=True))
    figures = [
        *speeds,
        Figure("command to first step of ResNet-20, two workers to one process", ratios, "x"),
        Figure("command to first step, one process", quartiles(starts[1]), "s"),
        Figure("command to first step, two workers", quartiles(starts[2]), "s"),
    ]
    baseline = "resnet20-one-process"
    return SuiteResult(
        "Two workers on one machine, CIFAR-10, global batch 128",
        figures,
        [note],
        baseline,
        rows(measured, baseline),
    )
