"""Pure functions from turns to figures: quartiles, ratios of contenders by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness import Measured, Turn


@dataclass(frozen=True)
class Quartiles:
    low: float
    median: float
    high: float

    def scaled(self, factor: float) -> Quartiles:
        return Quartiles(self.low * factor, self.median * factor, self.high * factor)


@dataclass(frozen=True)
class Figure:
    """One measured number with its spread."""

    name: str
    measured: Quartiles
    unit: str


@dataclass(frozen=True)
class Row:
    """A contender in the table of a suite; the ratio of its speed is to the suite's baseline."""

    name: str
    images_per_s: Quartiles
    cpu_ms_per_image: Quartiles
    ratio: Quartiles
    idle_cpu_share: float
    peak_bytes: int
    steps_per_turn: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class SuiteResult:
    """The result of a suite, to be printed and saved."""

    title: str
    figures: Sequence[Figure]
    notes: Sequence[str] = ()
    baseline: str = ""
    rows: Sequence[Row] = field(default_factory=tuple)


def quartiles(values: Iterable[float]) -> Quartiles:
    ordered = sorted(values)
    if len(ordered) == 1:
        return Quartiles(ordered[0], ordered[0], ordered[0])
    return Quartiles(*statistics.quantiles(ordered, n=4, method="inclusive"))


def ratio(
    of: Measured, to: Measured, value: Callable[[Turn], float] = lambda turn: turn.images_per_s
) -> Quartiles:
    """Return the quartiles of the ratios within each round, so that slow rounds cancel out."""
    return quartiles(
        value(ours) / value(theirs) for ours, theirs in zip(of.turns, to.turns, strict=True)
    )


def best(measured: Mapping[str, Measured], prefix: str) -> str:
    """Return the contender with the highest median speed whose name begins with `prefix`."""
    names = [name for name in measured if name.startswith(prefix)]
    return max(
        names,
        key=lambda name: statistics.median(turn.images_per_s for turn in measured[name].turns),
    )


def best_of_rounds(measured: Mapping[str, Measured], prefix: str) -> Measured:
    """Return the fastest turn of each round, of the contenders whose names begin with `prefix`."""
    group = [each for name, each in measured.items() if name.startswith(prefix)]
    turns = zip(*(each.turns for each in group), strict=True)
    fastest = tuple(max(each, key=lambda turn: turn.images_per_s) for each in turns)
    return Measured(best(measured, prefix), 0, fastest, 0.0)


MOST_CONTRADICTION = 1.15


def compared(measured: Mapping[str, Measured], own: str) -> list[Figure]:
    """Return how much faster a contender is than PyTorch's best of each round, also in CPU time.

    Both use all cores, so the two figures should be close. If they are not, something disturbed
    the measurement, and there is no ratio of speeds; the cores in use tell whose turns were.
    """
    pytorch = best_of_rounds(measured, "pytorch-")
    speed = ratio(measured[own], pytorch)
    cpu = ratio(pytorch, measured[own], lambda turn: turn.cpu_ms_per_image)
    of_speed = Figure(f"images/s, paceline to PyTorch's best (mostly {pytorch.name})", speed, "x")
    of_cpu = Figure("CPU time per image, PyTorch's best to paceline", cpu, "x")
    cores = [
        Figure(f"cores in use, {name}", quartiles(t.cpu_s / t.wall_s for t in each.turns), "")
        for name, each in ((own, measured[own]), ("PyTorch's best", pytorch))
    ]
    larger, smaller = max(speed.median, cpu.median), min(speed.median, cpu.median)
    agree = larger <= MOST_CONTRADICTION * smaller
    return [*([of_speed] if agree else []), of_cpu, *cores]


def rows(measured: Mapping[str, Measured], baseline: str) -> list[Row]:
    return [
        Row(
            name=each.name,
            images_per_s=quartiles(turn.images_per_s for turn in each.turns),
            cpu_ms_per_image=quartiles(turn.cpu_ms_per_image for turn in each.turns),
            ratio=ratio(each, measured[baseline]),
            idle_cpu_share=each.idle_cpu_share,
            peak_bytes=each.peak_bytes,
            steps_per_turn=each.steps_per_turn,
            turns=each.turns,
        )
        for each in measured.values()
    ]
