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

    Each line is good, slow or broken, and says what to do. A line that is absent is about something
    that is not installed and that only some people need. The exit code is 1 if something is broken.

    Example: paceline doctor --run-dir /mnt/shared/runs
    """

    run_dir: str = "runs"
    """Folder where runs will be written; its speed and free space are measured."""
    ray_address: str = ""
    """Address of a Ray cluster to connect to. Empty means the value of RAY_ADDRESS."""
    spark_master: str = ""
    """Spark master to connect to, as spark://HOST:PORT. Empty means none."""

    def __call__(self) -> int:
        from rich.console import Console
        from rich.text import Text

        from paceline.extras.doctor import examine_machine

        console, broken = Console(), False
        styles = {"good": "green", "slow": "yellow", "broken": "red", "absent": "dim"}
        for finding in examine_machine(self.run_dir, self.ray_address, self.spark_master):
            broken = broken or finding.state == "broken"
            state = Text(f"{finding.state:<7}", styles[finding.state])
            console.print(state, Text(f"{finding.what}: {finding.text}"), soft_wrap=True)
        return 1 if broken else 0


@dataclass(frozen=True)
class Bench:
    """Measure the training speed of recipes on this machine: paceline bench [RECIPE ...]

    For each recipe and place it prints the images per second and the training time of a full run.
    Without --data.dir, recipes for CIFAR train on generated images of the same shape.

    Example: paceline bench cifar10-fast --seconds 20 --on local ray
    """

    recipes: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = ()
    """Recipes to measure. Without any: shapes, cifar10-fast and cifar10-resnet56."""
    data: DataFlags = field(default_factory=DataFlags)
    seconds: float = 10.0
    """Seconds to measure each, after it was compiled."""
    on: tuple[Kind, ...] = ("local",)
    """Places to measure. local: processes of this command.
    ps: the same with a parameter server. ray, spark: a cluster started on this machine."""
    workers: tuple[int, ...] = (1, 2)
    """Numbers of workers to measure."""

    def __call__(self) -> int:
        from paceline.experiment.recipes.table import get_recipe

        if self.seconds <= 0:
            raise UserError(f"seconds is {self.seconds}; it must be above 0")
        if not self.workers:
            raise UserError("workers is empty; it must be at least one number, such as 1 2")
        names = self.recipes or ("shapes", "cifar10-fast", "cifar10-resnet56")
        recipes = {name: get_recipe(name) for name in names}  # a wrong name fails at once
        for name, kind, workers in product(recipes, self.on, self.workers):
            measured = measure_recipe(
                name, recipes[name], kind, workers, self.seconds, self.data.dir
            )
            print(measured.line(), flush=True)
        return 0
