"""What an exchange costs with 1 to 16 real workers, and a model of it for up to 512. Root only.

Each worker is a host of its own (`link.many_hosts`), so the bytes that leave it are counted, with
all headers. CPU time is that of the worker's process. All hosts share the cores of this machine, so
the wall time of many workers means little. The model (`scale_model`) is fitted to the CPU time, and
checked against two workers with links of two rates.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from statistics import median
from typing import Any

from benchmarks.harness import ROOT, ContenderFailed, clean_environment
from benchmarks.link import many_hosts, why_not
from benchmarks.scale_model import (
    FLOAT_BYTES,
    Cost,
    Traffic,
    exact_traffic,
    fit,
    ring_traffic,
    servers_traffic,
)
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles

MODELS = {"ResNet-20": 272_474, "ResNet-56": 855_770, "ResNet-50": 25_557_032}
WORKERS = (1, 2, 3, 4, 8, 16)
LARGE_WORKERS = (2,)
RATES = (1000, 10_000, 25_000)
CHECKED_RATES = (200, 1000)
PREDICTED = (2, 8, 64, 512)
PORT = 5200

Turns = list[dict[str, float]]


def replicas_of(workers: int) -> int:
    """Return the replicas of a measured case: uneven shares where the number is no power of two."""
    return workers if workers & (workers - 1) == 0 else 4 * workers


def case(hosts: list[tuple[str, str]], size: int, settings: Settings) -> dict[str, Any]:
    workers = len(hosts)
    expected_s = 0.004 * workers + 3e-8 * size * workers
    return {
        "hosts": [name for name, _ in hosts],
        "addresses": [f"{address}:{PORT}" for _, address in hosts],
        "replicas": replicas_of(workers),
        "size": size,
        "algorithms": ["exact", "ring"] if workers > 1 else ["exact"],
        "exchanges": max(2, round(settings.turn_seconds / expected_s)),
        "turns": settings.rounds,
    }


class Measurer:
    """The process that forks the workers of one case after another."""

    def __enter__(self) -> Measurer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contender_scale"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=ROOT,
            env=clean_environment({}),
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def measure(self, workers: int, size: int, settings: Settings, rate: float = 0) -> Measured:
        with many_hosts(workers, rate) as hosts:
            self._process.stdin.write(json.dumps(case(hosts, size, settings)) + "\n")
            results = json.loads(self._process.stdout.readline() or "[null]")
        if None in results:
            raise ContenderFailed(f"a worker of {workers} failed, with vectors of {size} floats")
        return Measured(workers, size, results)


class Measured:
    """The turns of all workers of one case."""

    def __init__(self, workers: int, size: int, results: list[dict[str, Turns]]) -> None:
        self.workers, self.size, self._results = workers, size, results
        self.traffic = exact_traffic(workers, replicas_of(workers))

    def cpu_s(self, algorithm: str) -> list[float]:
        """Return CPU seconds of an exchange, the mean over the workers, for each turn."""
        turns = zip(*(each[algorithm] for each in self._results), strict=True)
        return [sum(turn["cpu_s"] for turn in row) / len(row) for row in turns]

    def wall_s(self, algorithm: str) -> float:
        return median(turn["wall_s"] for turn in self._results[0][algorithm])

    def vectors(self, algorithm: str) -> float:
        """Return what the busiest worker sends in an exchange, in vectors."""
        sent = [median(turn["sent"] for turn in each[algorithm]) for each in self._results]
        return max(sent) / (FLOAT_BYTES * self.size)

    def figures(self) -> Iterable[Figure]:
        what = f"{self.workers} workers, {self.size / 1e6:.2f} M floats"
        exact = self.cpu_s("exact")
        yield Figure(f"{what}: CPU per worker", quartiles(1000 * each for each in exact), "ms")
        if self.workers == 1:
            return
        ratios = [ours / theirs for ours, theirs in zip(exact, self.cpu_s("ring"), strict=True)]
        yield Figure(f"{what}: CPU, divided by the ring's", quartiles(ratios), "x")
        sent = quartiles([self.vectors("exact")])
        yield Figure(f"{what}: sent by a worker", sent, "vectors")
        walls = quartiles([self.wall_s("exact") / self.wall_s("ring")])
        yield Figure(f"{what}: wall time, divided by the ring's", walls, "x")


def predict(cost: Cost, checked: list[str]) -> list[str]:
    """Return the table of the model as lines of Markdown."""
    lines = [
        f"model: {1e6 * cost.message_s:.0f} us of CPU per message and {1e9 * cost.byte_s:.2f} ns "
        "per byte, fitted to the rows above",
        *checked,
        "modelled milliseconds of an exchange: exact / plain ring / parameter servers, one for 4 "
        "workers",
        "| model, link | " + " | ".join(f"{workers} workers" for workers in PREDICTED) + " |",
        "|---" * (len(PREDICTED) + 1) + "|",
    ]
    for model, size in MODELS.items():
        for rate in RATES:
            cells = []
            for workers in PREDICTED:
                kinds = (
                    exact_traffic(workers, workers),
                    ring_traffic(workers),
                    servers_traffic(workers, max(1, workers // 4)),
                )
                cells.append(" / ".join(_ms(cost, kind, size, rate) for kind in kinds))
            lines.append(f"| {model}, {rate / 1000:g} Gbit/s | {' | '.join(cells)} |")
    return lines


def _ms(cost: Cost, traffic: Traffic, size: int, rate: float) -> str:
    return f"{1000 * cost.seconds(traffic, size, rate):,.0f}"


def measure(settings: Settings) -> SuiteResult:
    if reason := why_not():
        raise ContenderFailed(f"hosts cannot be simulated here: {reason}")
    found, checked = [], []
    with Measurer() as measurer:
        cases = [(MODELS["ResNet-56"], WORKERS), (MODELS["ResNet-20"], (2, 8))]
        for size, numbers in [*cases, (MODELS["ResNet-50"], LARGE_WORKERS)]:
            for workers in numbers:
                settings.tell(f"{workers} workers, {size:,} floats")
                found.append(measurer.measure(workers, size, settings))
        cost = fit([(m.traffic, m.size, median(m.cpu_s("exact"))) for m in found if m.workers > 1])
        for rate in CHECKED_RATES:
            settings.tell(f"2 workers, links of {rate} Mbit/s")
            one = measurer.measure(2, MODELS["ResNet-56"], settings, rate)
            modelled = cost.seconds(one.traffic, one.size, rate)
            checked.append(
                f"2 workers, 0.86 M floats, {rate} Mbit/s: {1000 * one.wall_s('exact'):.0f} ms "
                f"measured, {1000 * modelled:.0f} ms modelled"
            )
    figures = [figure for each in found for figure in each.figures()]
    return SuiteResult("Exchange of vectors between workers", figures, predict(cost, checked))
