"""How fast a recipe trains on this machine: the real training, in its own worker processes, for some seconds."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paceline.config.experiment import Experiment
from paceline.config.job import Job, Place, Run, Spark
from paceline.config.plan import build_plan
from paceline.errors import UserError
from paceline.messages import Block, Message, Start

CIFAR_SIZE = 50_000
Kind = Literal["local", "ps", "ray", "spark"]


@dataclass(frozen=True)
class Measured:
    recipe: str
    where: str
    images_per_second: float | None
    total_images: int
    """Of a full run."""
    drawn: bool
    """Whether drawn pictures stood in for the recipe's own."""

    def line(self) -> str:
        where = f"{self.recipe:<18} {self.where:<19}"
        if not self.images_per_second:
            return f"{where}  nothing measured; give more --seconds"
        duration = _duration(self.total_images / self.images_per_second)
        stand_in = "  (on generated images)" if self.drawn else ""
        speed = f"{self.images_per_second:>8,.0f} images/s"
        return f"{where}  {speed}  full run: about {duration} of training{stand_in}"


def choose_place(kind: Kind, workers: int) -> tuple[str, Place]:
    """What a person would call it, and the place: Ray and Spark on this machine, one worker per task and actor."""
    base = Place(on="local", workers=workers, max_restarts=0)
    if kind == "ps":
        return f"{workers} + 1 ps", replace(base, ps=1)
    if kind == "ray":
        return f"Ray, {workers} actor{'s' * (workers > 1)}", replace(base, on="ray")
    if kind == "spark":
        return f"Spark, {workers} task{'s' * (workers > 1)}", replace(
            base, on="spark", spark=Spark(master=f"local-cluster[{workers},1,1024]")
        )
    return "one process" if workers == 1 else f"{workers} processes", base


def measure_recipe(
    name: str, experiment: Experiment, kind: Kind, workers: int, seconds: float, data_dir: str = ""
) -> Measured:
    """Train for `seconds` after the first block, which compiles; nothing is evaluated, and the run folder is gone afterwards."""
    from paceline.places import launch

    drawn = experiment.data.source == "cifar10" and not data_dir
    if drawn:  # the same shapes and numbers of pictures and classes
        data = replace(
            experiment.data, source="shapes", train_size=5_000, test_size=10, validation=0
        )
    elif experiment.data.source != "shapes" and not data_dir:
        raise UserError(f"the recipe {name} needs its data: give --data.dir DIR")
    else:
        data = replace(experiment.data, dir=data_dir if experiment.data.source != "shapes" else "")
    quick = replace(
        experiment, data=data, epochs=10_000.0, steps=0, evaluate_every=0.0, save_every=0.0
    )
    deadline, total_steps = float("inf"), 0

    def listen(message: Message) -> None:
        nonlocal deadline, total_steps
        if isinstance(message, Start):
            total_steps = _full_steps(experiment, message.steps_per_epoch)
        if isinstance(message, Block):
            deadline = min(deadline, time.monotonic() + seconds)
            if time.monotonic() >= deadline:
                raise StopIteration

    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        where, place = choose_place(kind, workers)
        result = launch(Job(quick, place, Run(run_dir=str(Path(folder, "run")))), listen)
    if drawn:
        total_steps = build_plan(experiment, CIFAR_SIZE - experiment.data.validation).total_steps
    images = total_steps * experiment.global_batch_size
    return Measured(name, where, result.get("images_per_second"), images, drawn)


def _full_steps(experiment: Experiment, steps_per_epoch: int) -> int:
    return experiment.steps or round(experiment.epochs * steps_per_epoch)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"
