"""Evaluation speed of ResNet-20: Paceline, with both kernels, against PyTorch's inference mode."""

from benchmarks.harness import Contender
from benchmarks.images import cifar10_folder
from benchmarks.machine import torch_python
from benchmarks.pair import OWN, paceline_pair, pair_figures, pair_notes
from benchmarks.suites import Settings
from benchmarks.summary import SuiteResult, best, compared, rows

VARIANTS = ("threads", "processes", "compile", "processes-compile")


def contenders(folder: str) -> list[Contender]:
    command, of_model = (torch_python(), "-m", "benchmarks.contender_pytorch_evaluation"), "20"
    return [
        *paceline_pair("contender_paceline_evaluation", of_model, folder),
        *(
            Contender(f"pytorch-{variant}", (*command, variant, of_model, folder))
            for variant in VARIANTS
        ),
    ]


def measure(settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        measured, repeated = settings.alternate_quietly(contenders(folder))
    pytorch = best(measured, "pytorch-")
    figures = [*compared(measured, OWN), *pair_figures(measured)]
    notes = [note, *repeated, *pair_notes()]
    title = "Evaluation of ResNet-20, 10,000 images of CIFAR-10, float32"
    return SuiteResult(title, figures, notes, pytorch, rows(measured, pytorch))
