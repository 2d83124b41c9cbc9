"""What looks at this machine: `paceline doctor` and `bench`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Annotated

import tyro

from paceline.cli.results import DataFlags
from paceline.errors import UserError
from paceline.extras.bench import Kind, measure_recipe


@dataclass(frozen=True)
class Doctor:
    """Check this machine and report what is good, slow or broken: paceline doctor

    Each line is good, slow or broken, and says what to do. The exit code is 1 if something is
    broken.

    Example: paceline doctor --run-dir /mnt/shared/runs
    """

    run_dir: str = "runs"
    """Folder where runs will be written; its speed and free space are measured."""
    bits: str = ""
    """A recipe: instead of the machine, report which operations decide its bits, and whether they
    are the same on any CPU."""
    data: DataFlags = field(default_factory=DataFlags)

    def __call__(self) -> int:
        from rich.console import Console
        from rich.text import Text

        from paceline.extras.bits import examine_bits
        from paceline.extras.doctor import examine_machine

        console, broken = Console(), False
        styles = {"good": "green", "slow": "yellow", "broken": "red"}
        findings = examine_machine(self.run_dir)
        for finding in examine_bits(self.bits, self.data.dir) if self.bits else findings:
            broken = broken or finding.state == "broken"
            state = Text(f"{finding.state:<7}", styles[finding.state])
            console.print(state, Text(f"{finding.what}: {finding.text}"), soft_wrap=True)
        return 1 if broken else 0


@dataclass(frozen=True)
class Bench:
    """Measure the training speed of recipes on this machine: paceline bench [RECIPE ...]

    It prints the images per second of each recipe. Without --data.dir, recipes for CIFAR train on
    generated images of the same shape.

    Example: paceline bench cifar10-fast --seconds 20 --on local ray
    """

    recipes: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = ()
    """Recipes to measure. Without any: shapes, cifar10-fast and cifar10-resnet56."""
    data: DataFlags = field(default_factory=DataFlags)
    seconds: float = 10.0
    """Seconds to measure each, after it was compiled."""
    on: tuple[Kind, ...] = ("local",)
    """Places to measure. ps: local with a parameter server. ray, spark: a cluster started here."""
    workers: tuple[int, ...] = (1, 2)
    """Numbers of workers to measure."""

    def __call__(self) -> int:
        from paceline.experiment.recipes.table import get_recipe

        if self.seconds <= 0:
            raise UserError(f"seconds is {self.seconds}; it must be above 0")
        names = self.recipes or ("shapes", "cifar10-fast", "cifar10-resnet56")
        recipes = {name: get_recipe(name) for name in names}  # a wrong name fails at once
        for name, kind, workers in product(recipes, self.on, self.workers):
            experiment, data_dir = recipes[name], self.data.dir
            line = measure_recipe(name, experiment, kind, workers, self.seconds, data_dir)
            print(line, flush=True)
        return 0
