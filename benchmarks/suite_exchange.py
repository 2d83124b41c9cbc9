"""The exchange alone between two processes of this machine, next to gloo's all-reduce."""

import sys

from benchmarks.harness import Contender, Measured
from benchmarks.machine import torch_python
from benchmarks.suite_ray import module
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles, ratio, rows

SIZES = (855_770, 25_000_000)
OURS = {
    "sockets": "sockets, as --workers 2",
    "exact": "the network, as several machines",
    "ring": "TensorFlow's ring, not exact",
}


def measure(settings: Settings) -> SuiteResult:
    figures, shown = list[Figure](), dict[str, Measured]()
    for size in SIZES:
        contenders = [
            Contender(f"{name}-{size}", module(sys.executable, "exchange", name, str(size)))
            for name in OURS
        ]
        gloo = Contender(f"gloo-{size}", module(torch_python(), "exchange", "gloo", str(size)))
        measured = settings.alternate([*contenders, gloo])
        what = f"an exchange of {size / 1e6:.2f} M floats"
        for name, way in OURS.items():
            times = ratio(measured[gloo.name], measured[f"{name}-{size}"])
            figures.append(Figure(f"time of {what}, {way}, divided by gloo's", times, "x"))
        turns = measured[gloo.name].turns
        ms = quartiles(1000 / turn.images_per_s for turn in turns)
        figures.append(Figure(f"{what}, gloo", ms, "ms"))
        shown |= measured
    notes = ["an exchange: two vectors become their mean in both processes; images are exchanges"]
    baseline = f"gloo-{SIZES[0]}"
    title = "The exchange alone, two processes"
    return SuiteResult(title, figures, notes, baseline, rows(shown, baseline))
