"""Training speed of the recipe cifar10-speedrun: Paceline against PyTorch."""

from __future__ import annotations

from benchmarks.harness import Contender
from benchmarks.heats import choose_fastest
from benchmarks.images import cifar10_folder
from benchmarks.machine import torch_python
from benchmarks.pair import OWN, paceline_pair, pair_figures, pair_notes
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, best, ratio, rows

VARIANTS = ("threads", "ddp", "compile", "ddp-compile")


def contenders(folder: str) -> list[Contender]:
    command, of_model = (torch_python(), "-m", "benchmarks.contender_pytorch"), ("speedrun", folder)
    return [
        *paceline_pair("contender_paceline", *of_model),
        *(Contender(f"pytorch-{variant}", (*command, variant, *of_model)) for variant in VARIANTS),
    ]


def measure(settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        chosen, heats = choose_fastest(contenders(folder), ("pytorch-",), settings)
        measured = settings.alternate(chosen)
    pytorch = best(measured, "pytorch-")
    cpu = ratio(measured[pytorch], measured[OWN], lambda turn: turn.cpu_ms_per_image)
    figures = [
        Figure(
            f"images/s, paceline to PyTorch's best ({pytorch})",
            ratio(measured[OWN], measured[pytorch]),
            "x",
        ),
        Figure(f"CPU time per image, {pytorch} to paceline", cpu, "x"),
        *pair_figures(measured),
    ]
    title = "the network of cifar10-speedrun, crops of 33 pixels, global batch 1,000, float32"
    return SuiteResult(
        title, figures, [note, *heats, *pair_notes()], pytorch, rows(measured, pytorch)
    )
