"""Ray: actors against one process, their exchange against gloo's, and Ray Train's trainer."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.harness import ROOT, Contender, ContenderFailed, Measured, clean_environment
from benchmarks.images import cifar10_folder
from benchmarks.machine import ray_torch_python, torch_python
from benchmarks.suite_startup import run, train
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles, ratio, rows

METHODS = ("gradients", "weights")
SIZES = (270_000, 25_000_000)
MEMORY_SIZE = 10_000_000
FIRST_STEP_REPEATS = 2
_TIMEOUT_S = 300.0


def module(python: str, name: str, *arguments: str) -> tuple[str, ...]:
    return python, "-m", f"benchmarks.contender_{name}", *arguments


def measure(settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        contenders = [Contender("one-process", module(sys.executable, "paceline", "56", folder))]
        contenders += [
            Contender(f"ray-{method}", module(sys.executable, "paceline_ray", "56", folder, method))
            for method in METHODS
        ]
        measured = settings.alternate(contenders)
    figures = [
        Figure(
            f"images/s, 2 actors with {method} to one process",
            ratio(measured[f"ray-{method}"], measured["one-process"]),
            "x",
        )
        for method in METHODS
    ]
    notes = [
        note,
        "weights are averaged every 10 steps; "
        "one process has 2 replicas side by side, an actor has one",
    ]
    return SuiteResult(
        "Ray, ResNet-56", figures, notes, "one-process", rows(measured, "one-process")
    )


def measure_exchange(settings: Settings) -> SuiteResult:
    figures, shown = [], dict[str, Measured]()
    for size in SIZES:
        contenders = [
            Contender(f"ray-{size}", module(sys.executable, "exchange", "ray", str(size))),
            Contender(f"gloo-{size}", module(torch_python(), "exchange", "gloo", str(size))),
        ]
        measured = settings.alternate(contenders)
        ours, gloo = (measured[contender.name] for contender in contenders)
        times = ratio(gloo, ours)
        figures.append(
            Figure(f"time of an exchange of {size / 1e6:g} M floats, to gloo's", times, "x")
        )
        for each in (ours, gloo):
            figures.append(
                Figure(
                    f"  {each.name}",
                    quartiles(1000 / turn.images_per_s for turn in each.turns),
                    "ms",
                )
            )
        shown |= measured
    settings.tell("memory of the driver with 2 and 8 actors")
    few, many = (driver_bytes(workers) for workers in (2, 8))
    grown = quartiles([(many - few) / (4 * MEMORY_SIZE)])
    figures.append(Figure("the driver's memory from 2 to 8 actors", grown, "vectors"))
    notes = ["an exchange: two vectors become their mean in both workers; images are exchanges"]
    return SuiteResult(
        "Ray, the exchange alone",
        figures,
        notes,
        f"gloo-{min(SIZES)}",
        rows(shown, f"gloo-{min(SIZES)}"),
    )


def driver_bytes(workers: int) -> int:
    command = module(sys.executable, "exchange", "driver", str(workers), str(MEMORY_SIZE))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=clean_environment({}),
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ContenderFailed(
            f"{' '.join(command)} failed; the end of its stderr:\n{done.stderr[-2000:]}"
        )
    return int(done.stdout.split()[-1])


def measure_train(settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        theirs = module(ray_torch_python(), "ray_train", "20", folder)
        contenders = [
            Contender(
                "paceline-on-ray", module(sys.executable, "paceline_ray", "20", folder, "gradients")
            ),
            Contender("ray-train", theirs),
        ]
        measured = settings.alternate(contenders)
        settings.tell("the first step")
        own_s, their_s = [], []
        for _ in range(FIRST_STEP_REPEATS):
            own_s.append(train(folder, 1, flags=("--on", "ray", "--workers", "2"))[0])
            their_s.append(run([*theirs, "--one"])[0])
    figures = [
        Figure(
            "images/s, paceline on Ray to Ray Train",
            ratio(measured["paceline-on-ray"], measured["ray-train"]),
            "x",
        ),
        Figure("paceline train --on ray --stop-at 1, command to exit", quartiles(own_s), "s"),
        Figure("Ray Train, one step, command to exit", quartiles(their_s), "s"),
    ]
    notes = [
        note,
        "both start a cluster of their own; Paceline's command also saves and closes its run",
    ]
    return SuiteResult(
        "Ray Train beside it, ResNet-20, 2 workers",
        figures,
        notes,
        "ray-train",
        rows(measured, "ray-train"),
    )
