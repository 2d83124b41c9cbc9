"""Ray: actors against one process, and Ray Train's trainer."""

import sys

from benchmarks.harness import Contender
from benchmarks.images import cifar10_folder
from benchmarks.machine import ray_torch_python
from benchmarks.suite_startup import run, train
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles, ratio, rows

METHODS = ("gradients", "weights")
FIRST_STEP_REPEATS = 2


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
