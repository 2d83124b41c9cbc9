"""The cost of several workers on one machine: two workers of one core, one process on two."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import processes
from benchmarks.contender_paceline import REPLICAS
from benchmarks.harness import ROOT, Contender, ContenderFailed, alternate, clean_environment
from benchmarks.images import cifar10_folder
from benchmarks.suite_startup import paceline
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, Target, quartiles, ratio, rows

SPEED_TARGET = Target(">=", 0.92)
START_TARGET = Target("<=", 1.5)
START_REPEATS = 3
_TIMEOUT_S = 120.0


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def measure_more(settings: Settings) -> SuiteResult:
    """Measure more workers than cores, and an uneven tree, against one process."""
    cases = [(4, 4, Target(">=", 0.95)), (3, 12, Target(">=", 0.93))]
    module, measured = (sys.executable, "-m"), {}
    with cifar10_folder() as (folder, note):
        for workers, replicas, _ in cases:
            hosts = [word for address in free_addresses(workers) for word in ("-", address)]
            of_model, variable = ("56", folder), {REPLICAS: str(replicas)}
            one = (*module, "benchmarks.contender_paceline", *of_model)
            many = (*module, "benchmarks.contender_workers", *of_model, "1", *hosts)
            pair = [
                Contender(f"{replicas}-replicas-one-process", one, variable),
                Contender(f"{replicas}-replicas-{workers}-workers", many, variable),
            ]
            measured |= alternate(pair, settings.rounds, settings.turn_seconds, tell=settings.tell)
    figures = [
        Figure(
            f"images/s of ResNet-56, {workers} workers to one process, {replicas} replicas",
            ratio(
                measured[f"{replicas}-replicas-{workers}-workers"],
                measured[f"{replicas}-replicas-one-process"],
            ),
            "x",
            target,
        )
        for workers, replicas, target in cases
    ]
    baseline = "4-replicas-one-process"
    title = "More workers on one machine, CIFAR-10"
    return SuiteResult(title, figures, [note], baseline, rows(measured, baseline))


def contenders(folder: str) -> list[Contender]:
    def of(depth: int) -> list[Contender]:
        module, of_model = (sys.executable, "-m"), (str(depth), folder)
        hosts = [word for address in free_addresses(2) for word in ("-", address)]
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
        measured = alternate(
            contenders(folder), settings.rounds, settings.turn_seconds, tell=settings.tell
        )
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
            SPEED_TARGET,
        )
        for depth in (20, 56)
    ]
    ratios = quartiles(two / one for one, two in zip(starts[1], starts[2], strict=True))
    figures = [
        *speeds,
        Figure(
            "command to first step of ResNet-20, two workers to one process",
            ratios,
            "x",
            START_TARGET,
        ),
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
