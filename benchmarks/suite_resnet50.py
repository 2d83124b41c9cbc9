"""Training speed of ResNet-50 at 224 pixels on the CPU: Paceline against PyTorch, channels-last."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import Contender
from benchmarks.machine import torch_python
from benchmarks.pair import OWN, paceline_pair, pair_figures, pair_notes
from benchmarks.suites import Settings
from benchmarks.summary import SuiteResult, best, compared, rows
from paceline.formats.arrays import save_arrays

PICTURES = 128
VARIANTS = ("threads", "ddp")
"""Without torch.compile, which takes minutes here."""


def write_pictures(folder: Path) -> None:
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (PICTURES, 224, 224, 3), np.uint8)
    labels = generator.integers(0, 1000, PICTURES)
    save_arrays(folder, (pictures, labels), (pictures[:16], labels[:16]))


def contenders(folder: str) -> list[Contender]:
    command, of_model = (torch_python(), "-m", "benchmarks.contender_pytorch"), ("50", folder)
    return [
        *paceline_pair("contender_paceline", *of_model),
        *(Contender(f"pytorch-{variant}", (*command, variant, *of_model)) for variant in VARIANTS),
    ]


def measure(settings: Settings) -> SuiteResult:
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent:
        folder = Path(parent, "pictures")
        write_pictures(folder)
        measured, repeated = settings.alternate_quietly(contenders(str(folder)))
    pytorch = best(measured, "pytorch-")
    figures = [*compared(measured, OWN), *pair_figures(measured)]
    notes = [
        f"data: {PICTURES} random images in memory, scaled by mean and deviation, "
        "the same for all; no JPEG is decoded",
        *repeated,
        *pair_notes(),
    ]
    title = "ResNet-50 v1.5, 224x224, 1000 classes, global batch 16, float32"
    return SuiteResult(title, figures, notes, pytorch, rows(measured, pytorch))
