"""Paceline twice: with its own kernels, and with TensorFlow's."""

import sys
from collections.abc import Mapping

from benchmarks.harness import Contender, Measured
from benchmarks.summary import Figure, quartiles, ratio
from paceline.kernels.library import DISABLE, why_unavailable

OWN, STOCK = "paceline", "paceline-tensorflow"


def paceline_pair(module: str, *arguments: str) -> list[Contender]:
    """Return the two contenders; by default Paceline uses its own kernels if it can."""
    command = (sys.executable, "-m", f"benchmarks.{module}", *arguments)
    return [Contender(OWN, command), Contender(STOCK, command, {DISABLE: "1"})]


def pair_figures(measured: Mapping[str, Measured]) -> list[Figure]:
    """Return what own kernels change: speed, CPU time and memory."""
    own, stock = measured[OWN], measured[STOCK]
    cpu = ratio(stock, own, lambda turn: turn.cpu_ms_per_image)
    memory = quartiles([own.peak_bytes / stock.peak_bytes])
    return [
        Figure("images/s, own kernels to TensorFlow's", ratio(own, stock), "x"),
        Figure("CPU time per image, TensorFlow's kernels to own", cpu, "x"),
        Figure("peak memory, own kernels to TensorFlow's", memory, "x"),
    ]


def pair_notes() -> list[str]:
    """Return a warning if own kernels cannot be used, and both contenders are the same."""
    reason = why_unavailable()
    return [f"own kernels were not used: {reason}"] if reason else []
