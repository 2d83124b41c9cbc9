"""The input pipeline of Paceline against its training: a step must never wait for images."""

from __future__ import annotations

import sys

from benchmarks.harness import Contender, alternate
from benchmarks.images import cifar10_folder
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, Target, ratio, rows

INPUT_TARGET = Target(">=", 20)


def measure(settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        contenders = [
            Contender(name, (sys.executable, "-m", f"benchmarks.contender_{module}", "20", folder))
            for name, module in (("paceline", "paceline"), ("paceline-input", "paceline_input"))
        ]
        measured = alternate(contenders, settings.rounds, settings.turn_seconds, tell=settings.tell)
    speed = ratio(measured["paceline-input"], measured["paceline"])
    figure = Figure(
        "images/s, input pipeline alone to ResNet-20 training", speed, "x", INPUT_TARGET
    )
    return SuiteResult(
        "Input pipeline, CIFAR-10 with augmentation",
        [figure],
        [note],
        "paceline",
        rows(measured, "paceline"),
    )
