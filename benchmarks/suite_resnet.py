"""Training speed of the CIFAR ResNets: Paceline, PyTorch, Keras `fit`, and the matrix peak."""

from __future__ import annotations

import sys

from benchmarks.flops import training_flops
from benchmarks.harness import Contender, Measured, alternate
from benchmarks.images import cifar10_folder
from benchmarks.machine import torch_python
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, Target, best, quartiles, ratio, rows

PYTORCH_TARGETS = {20: Target(">=", 1.15), 56: Target(">=", 1.0)}
KERAS_TARGETS = {20: Target(">=", 2.0)}
PEAK_TARGETS = {20: Target(">=", 65.0)}


def contenders(depth: int, folder: str) -> list[Contender]:
    def module(python: str, name: str, *arguments: str) -> tuple[str, ...]:
        return python, "-m", f"benchmarks.contender_{name}", *arguments

    here, with_torch, of_model = sys.executable, torch_python(), (str(depth), folder)
    pytorch = (
        ("threads", "ddp", "compile", "ddp-compile") if depth == 20 else ("threads", "ddp")
    )  # to compile ResNet-56 takes minutes
    return [
        Contender("paceline", module(here, "paceline", *of_model)),
        *(
            Contender(f"pytorch-{variant}", module(with_torch, "pytorch", variant, *of_model))
            for variant in pytorch
        ),
        Contender("keras-fit", module(here, "keras", *of_model)),
        Contender("sgemm-torch", module(with_torch, "sgemm", "torch", str(depth))),
        Contender(
            "sgemm-tensorflow",
            module(here, "sgemm", "tensorflow", str(depth)),
            {"TF_ENABLE_ONEDNN_OPTS": "1"},
        ),
        Contender("sgemm-numpy", module(here, "sgemm", "numpy", str(depth))),
    ]


def figures(depth: int, measured: dict[str, Measured]) -> list[Figure]:
    """Return the figures: the fastest contender of each group counts, and is named.

    PyTorch's compiler is a group of its own, because not everybody can use it.
    """
    paceline = measured["paceline"]
    eager = {name: own for name, own in measured.items() if not name.endswith("compile")}
    pytorch, peak = best(eager, "pytorch-"), best(measured, "sgemm-")
    giga_flops = training_flops(depth) / 1e9
    cpu = ratio(measured[pytorch], paceline, lambda turn: turn.cpu_ms_per_image)
    compiled = [
        Figure(f"images/s, paceline to {name}", ratio(paceline, own), "x")
        for name, own in measured.items()
        if name.endswith("compile")
    ]
    return [
        Figure(
            f"images/s, paceline to PyTorch's best ({pytorch})",
            ratio(paceline, measured[pytorch]),
            "x",
            PYTORCH_TARGETS[depth],
        ),
        *compiled,
        Figure(f"CPU time per image, {pytorch} to paceline", cpu, "x"),
        Figure(
            "images/s, paceline to Keras's fit",
            ratio(paceline, measured["keras-fit"]),
            "x",
            KERAS_TARGETS.get(depth),
        ),
        Figure(
            f"paceline's share of the peak ({peak})",
            ratio(paceline, measured[peak]).scaled(100),
            "%",
            PEAK_TARGETS.get(depth),
        ),
        Figure(
            f"PyTorch's share of the peak ({pytorch})",
            ratio(measured[pytorch], measured[peak]).scaled(100),
            "%",
        ),
        Figure(
            f"the peak ({peak})",
            quartiles(turn.images_per_s for turn in measured[peak].turns).scaled(giga_flops),
            "GFLOP/s",
        ),
    ]


def measure(depth: int, settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        measured = alternate(
            contenders(depth, folder), settings.rounds, settings.turn_seconds, tell=settings.tell
        )
    baseline = best(measured, "pytorch-")
    notes = [
        note,
        f"one image of training is {training_flops(depth) / 1e6:.1f} MFLOP; "
        "the sgemm rows are counted in images of that size",
    ]
    title = f"ResNet-{depth}, CIFAR-10, global batch 128, float32"
    return SuiteResult(title, figures(depth, measured), notes, baseline, rows(measured, baseline))


def measure_resnet20(settings: Settings) -> SuiteResult:
    return measure(20, settings)


def measure_resnet56(settings: Settings) -> SuiteResult:
    return measure(56, settings)
