"""The table of suites.

A new suite is a file with a function (Settings) -> SuiteResult, and a line here.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.disturbance import QuietRounds
from benchmarks.harness import Contender, Measured, alternate
from benchmarks.summary import SuiteResult

SUITES = {
    "resnet20": "benchmarks.suite_resnet:measure_resnet20",
    "resnet56": "benchmarks.suite_resnet:measure_resnet56",
    "resnet50": "benchmarks.suite_resnet50:measure",
    "resnet50-bfloat16": "benchmarks.suite_resnet50:measure_bfloat16",
    "speedrun": "benchmarks.suite_speedrun:measure",
    "evaluation": "benchmarks.suite_evaluation:measure",
    "ps": "benchmarks.suite_ps:measure",
    "startup": "benchmarks.suite_startup:measure",
    "workers": "benchmarks.suite_workers:measure",
    "more-workers": "benchmarks.suite_workers:measure_more",
    "plain-mean": "benchmarks.suite_workers:measure_plain",
    "exchange": "benchmarks.suite_exchange:measure",
    "scale": "benchmarks.suite_scale:measure",
    "recovery": "benchmarks.suite_recovery:measure",
    "slow-link-5-mbit": "benchmarks.suite_slow_link:measure_5_mbit",
    "slow-link-50-mbit": "benchmarks.suite_slow_link:measure_50_mbit",
    "slow-link-1-gbit": "benchmarks.suite_slow_link:measure_1_gbit",
    "ray": "benchmarks.suite_ray:measure",
    "ray-train": "benchmarks.suite_ray:measure_train",
    "slurm": "benchmarks.suite_slurm:measure",
    "spark": "benchmarks.suite_spark:measure",
    "predict": "benchmarks.suite_predict:measure",
}
PUBLISHED = [
    "resnet20",
    "resnet56",
    "resnet50",
    "resnet50-bfloat16",
    "speedrun",
    "evaluation",
    "exchange",
    "startup",
]
"""Those that docs/performance.md publishes."""


@dataclass(frozen=True)
class Settings:
    """The settings of the command line, for every suite."""

    rounds: int
    turn_seconds: float
    tell: Callable[[str], None]

    def alternate(self, contenders: Sequence[Contender]) -> dict[str, Measured]:
        return alternate(contenders, self.rounds, self.turn_seconds, tell=self.tell)

    def alternate_quietly(
        self, contenders: Sequence[Contender]
    ) -> tuple[dict[str, Measured], list[str]]:
        """Repeat the rounds that were disturbed; return also a note about them."""
        rounds = QuietRounds(self.tell, most=2 * self.rounds)
        turns = self.rounds, self.turn_seconds
        measured = alternate(contenders, *turns, tell=self.tell, round_of=rounds)
        return measured, [f"rounds that were disturbed and repeated: {len(rounds.reasons)}"]


def load(name: str) -> Callable[[Settings], SuiteResult]:
    module, _, function = SUITES[name].partition(":")
    return getattr(importlib.import_module(module), function)
