"""Training speed of ResNet-50 at 224 pixels on the CPU: Paceline against PyTorch, channels-last."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.contender_paceline import PRECISION
from benchmarks.harness import Contender, Measured
from benchmarks.machine import torch_python
from benchmarks.pair import OWN, paceline_pair, pair_figures, pair_notes
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, best, compared, ratio, rows
from paceline.formats.arrays import save_arrays

PICTURES = 128
VARIANTS = ("threads", "ddp")
"""Without torch.compile, which takes minutes here."""
TITLE = "ResNet-50 v1.5, 224x224, 1000 classes, global batch 16"
BFLOAT16 = "paceline-bfloat16"


def write_pictures(folder: Path) -> None:
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (PICTURES, 224, 224, 3), np.uint8)
    labels = generator.integers(0, 1000, PICTURES)
    save_arrays(folder, (pictures, labels), (pictures[:16], labels[:16]))


def contenders(folder: str, variants: Sequence[str]) -> list[Contender]:
    command, of_model = (torch_python(), "-m", "benchmarks.contender_pytorch"), ("50", folder)
    return [
        *paceline_pair("contender_paceline", *of_model),
        *(Contender(f"pytorch-{variant}", (*command, variant, *of_model)) for variant in variants),
    ]


def alternate(
    settings: Settings, choose: Callable[[str], list[Contender]]
) -> tuple[dict[str, Measured], list[str]]:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent:
        folder = Path(parent, "pictures")
        write_pictures(folder)
        return settings.alternate_quietly(choose(str(folder)))


def measure(settings: Settings) -> SuiteResult:
    measured, repeated = alternate(settings, lambda folder: contenders(folder, VARIANTS))
    pytorch = best(measured, "pytorch-")
    figures = [*compared(measured, OWN), *pair_figures(measured)]
    notes = [
        f"data: {PICTURES} random images in memory, scaled by mean and deviation, "
        "the same for all; no JPEG is decoded",
        *repeated,
        *pair_notes(),
    ]
    return SuiteResult(f"{TITLE}, float32", figures, notes, pytorch, rows(measured, pytorch))


def measure_bfloat16(settings: Settings) -> SuiteResult:
    """Measure bfloat16 of both against float32 of both."""

    def choose(folder: str) -> list[Contender]:
        own, _, *pytorch = contenders(folder, (*VARIANTS, *(f"{v}-bfloat16" for v in VARIANTS)))
        return [own, replace(own, name=BFLOAT16, environment={PRECISION: "bfloat16"}), *pytorch]

    measured, repeated = alternate(settings, choose)
    pytorch, of_own = best(measured, "pytorch-"), ratio(measured[BFLOAT16], measured[OWN])
    figures = [*compared(measured, BFLOAT16), Figure("images/s, bfloat16 to float32", of_own, "x")]
    title = f"{TITLE}, bfloat16; PyTorch's best of float32 and autocast to bfloat16"
    return SuiteResult(title, figures, repeated, pytorch, rows(measured, pytorch))
