"""Training speed of the CIFAR ResNets: Paceline, PyTorch, Keras `fit`, and the matrix peak."""

import sys

from benchmarks.flops import training_flops
from benchmarks.harness import Contender, Measured
from benchmarks.images import cifar10_folder
from benchmarks.machine import torch_python
from benchmarks.pair import OWN, paceline_pair, pair_figures, pair_notes
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, best, compared, quartiles, ratio, rows


def contenders(depth: int, folder: str) -> list[Contender]:
    def module(python: str, name: str, *arguments: str) -> tuple[str, ...]:
        return python, "-m", f"benchmarks.contender_{name}", *arguments

    here, with_torch, of_model = sys.executable, torch_python(), (str(depth), folder)
    onednn = {"TF_ENABLE_ONEDNN_OPTS": "1"}
    return [
        *paceline_pair("contender_paceline", *of_model),
        *(
            Contender(f"pytorch-{variant}", module(with_torch, "pytorch", variant, *of_model))
            for variant in ("threads", "ddp", "compile", "ddp-compile")
        ),
        *([Contender("keras-fit", module(here, "keras", *of_model))] * (depth == 20)),
        Contender("sgemm-torch", module(with_torch, "sgemm", "torch", str(depth))),
        Contender("sgemm-tensorflow", module(here, "sgemm", "tensorflow", str(depth)), onednn),
        Contender("sgemm-numpy", module(here, "sgemm", "numpy", str(depth))),
    ]


def figures(depth: int, measured: dict[str, Measured]) -> list[Figure]:
    """Return the figures: the fastest contender of each group counts, and is named."""
    paceline = measured[OWN]
    pytorch, peak = best(measured, "pytorch-"), best(measured, "sgemm-")
    giga_flops = training_flops(depth) / 1e9
    share = ratio(paceline, measured[peak]).scaled(100)
    pytorch_share = ratio(measured[pytorch], measured[peak]).scaled(100)
    peaks = quartiles(turn.images_per_s for turn in measured[peak].turns).scaled(giga_flops)
    keras = [
        Figure("images/s, paceline to Keras's fit", ratio(paceline, own), "x")
        for name, own in measured.items()
        if name == "keras-fit"
    ]
    return [
        *compared(measured, OWN),
        *pair_figures(measured),
        *keras,
        Figure(f"paceline's share of the peak ({peak})", share, "%"),
        Figure(f"PyTorch's share of the peak ({pytorch})", pytorch_share, "%"),
        Figure(f"the peak ({peak})", peaks, "GFLOP/s"),
    ]


def measure(depth: int, settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        measured, repeated = settings.alternate_quietly(contenders(depth, folder))
    baseline = best(measured, "pytorch-")
    flops = (
        f"one image of training is {training_flops(depth) / 1e6:.1f} MFLOP if convolutions are "
        "computed directly; the sgemm rows are counted in images of that size"
    )
    title = f"ResNet-{depth}, CIFAR-10, global batch 128, float32"
    notes = [note, *repeated, flops, *pair_notes()]
    return SuiteResult(title, figures(depth, measured), notes, baseline, rows(measured, baseline))


def measure_resnet20(settings: Settings) -> SuiteResult:
    return measure(20, settings)


def measure_resnet56(settings: Settings) -> SuiteResult:
    return measure(56, settings)
