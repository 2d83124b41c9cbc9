"""Measures how fast a recipe trains on this machine, with a real training of some seconds."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paceline.errors import UserError
from paceline.experiment.experiment import Data, Experiment
from paceline.experiment.plan import build_plan
from paceline.extras.report.formats import duration
from paceline.job import Job, Place, Run, Spark
from paceline.messages import Block, Message, Start

CIFAR_SIZE = 50_000
Kind = Literal["local", "ps", "ray", "spark"]


@dataclass(frozen=True)
class Measured:
    """The speed of a recipe in a place, and the size of a full run."""

    recipe: str
    where: str
    images_per_second: float | None
    total_images: int
    """Number of images in a full run."""
    generated: bool
    """Whether generated images replaced those of the recipe."""

    def line(self) -> str:
        where = f"{self.recipe:<18} {self.where:<19}"
        if not self.images_per_second:
            return f"{where}  nothing measured; give more --seconds"
        needed = duration(self.total_images / self.images_per_second / 60)
        stand_in = "  (on generated images)" if self.generated else ""
        speed = f"{self.images_per_second:>8,.0f} images/s"
        return f"{where}  {speed}  full run: about {needed} of training{stand_in}"


def choose_place(kind: Kind, workers: int) -> tuple[str, Place]:
    """Return a readable name and the place. Ray and Spark are started on this machine."""
    base = Place(on="local", workers=workers, max_restarts=0)
    several = "s" * (workers > 1)
    if kind == "ps":
        return f"{workers} + 1 ps", replace(base, ps=1)
    if kind == "ray":
        return f"Ray, {workers} actor{several}", replace(base, on="ray")
    if kind == "spark":
        spark = Spark(master=f"local-cluster[{workers},1,1024]")
        return f"Spark, {workers} task{several}", replace(base, on="spark", spark=spark)
    return f"{workers} processes" if several else "one process", base


def measure_recipe(
    name: str, experiment: Experiment, kind: Kind, workers: int, seconds: float, data_dir: str = ""
) -> Measured:
    """Train for `seconds` after the first block, which compiles, and return the speed.

    It evaluates nothing, and removes the run folder afterwards.
    """
    from paceline.launch import launch

    data = _choose_data(name, experiment.data, data_dir)
    generated = data.source != experiment.data.source
    quick = replace(
        experiment, data=data, epochs=10_000.0, steps=0, evaluate_every=0.0, save_every=0.0
    )
    deadline, total_steps = float("inf"), 0

    def listen(message: Message) -> None:
        nonlocal deadline, total_steps
        if isinstance(message, Start):
            epoch = message.steps_per_epoch
            total_steps = experiment.steps or round(experiment.epochs * epoch)
        if isinstance(message, Block):
            deadline = min(deadline, time.monotonic() + seconds)
            if time.monotonic() >= deadline:
                raise StopIteration

    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        where, place = choose_place(kind, workers)
        result = launch(Job(quick, place, Run(run_dir=str(Path(folder, "run")))), listen)
    if generated:
        total_steps = build_plan(experiment, CIFAR_SIZE - experiment.data.validation).total_steps
    images = total_steps * experiment.global_batch_size
    return Measured(name, where, result.get("images_per_second"), images, generated)


def _choose_data(name: str, data: Data, data_dir: str) -> Data:
    """Return the data to train on: in `data_dir`, or generated instead of CIFAR-10."""
    if data.source == "shapes":
        return replace(data, dir="")
    if data_dir:
        return replace(data, dir=data_dir)
    if data.source == "cifar10":  # images of the same shape, with as many classes
        return replace(data, source="shapes", train_size=5_000, test_size=10, validation=0)
    raise UserError(f"the recipe {name} needs its data: give --data.dir DIR")
