"""Training speed of the recipe cifar10-speedrun: Paceline against PyTorch."""

from benchmarks.harness import Contender
from benchmarks.images import cifar10_folder
from benchmarks.machine import torch_python
from benchmarks.pair import OWN, paceline_pair, pair_figures, pair_notes
from benchmarks.suites import Settings
from benchmarks.summary import SuiteResult, best, compared, rows

VARIANTS = ("threads", "ddp", "compile", "ddp-compile")


def contenders(folder: str) -> list[Contender]:
    command, of_model = (torch_python(), "-m", "benchmarks.contender_pytorch"), ("speedrun", folder)
    return [
        *paceline_pair("contender_paceline", *of_model),
        *(Contender(f"pytorch-{variant}", (*command, variant, *of_model)) for variant in VARIANTS),
    ]


def measure(settings: Settings) -> SuiteResult:
    with cifar10_folder() as (folder, note):
        measured, repeated = settings.alternate_quietly(contenders(folder))
    pytorch = best(measured, "pytorch-")
    figures = [*compared(measured, OWN), *pair_figures(measured)]
    title = "the network of cifar10-speedrun, crops of 33 pixels, global batch 1,000, float32"
    return SuiteResult(
        title, figures, [note, *repeated, *pair_notes()], pytorch, rows(measured, pytorch)
    )
