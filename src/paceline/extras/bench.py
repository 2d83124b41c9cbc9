"""Measures how fast a recipe trains on this machine, with a real training of some seconds."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from paceline.errors import UserError
from paceline.experiment.experiment import Data, Experiment
from paceline.job import Job, Place, Run, Spark
from paceline.messages import Block, Message

Kind = Literal["local", "ps", "ray", "spark"]


def measure_recipe(
    name: str, experiment: Experiment, kind: Kind, workers: int, seconds: float, data_dir: str
) -> str:
    """Train for `seconds` after the first block, which compiles; return a line with the speed.

    It evaluates nothing, and removes the run folder afterwards.
    """
    from paceline.launch import launch

    data = choose_data(name, experiment.data, data_dir)
    quick = replace(experiment, data=data, epochs=1e4, steps=0, evaluate_every=0.0, save_every=0.0)
    place = Place(on="local", workers=workers, max_restarts=0)
    if kind == "ps":
        place = replace(place, ps=1)
    elif kind != "local":  # started on this machine
        spark = Spark(master=f"local-cluster[{workers},1,1024]")
        place = replace(place, on=kind, spark=spark)
    deadline = float("inf")

    def listen(message: Message) -> None:
        nonlocal deadline
        if isinstance(message, Block):
            deadline = min(deadline, time.monotonic() + seconds)
            if time.monotonic() >= deadline:
                raise StopIteration

    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        result = launch(Job(quick, place, Run(run_dir=str(Path(folder, "run")))), listen)
    speed = result.get("images_per_second")
    told = f"{speed:>8,.0f} images/s" if speed else "nothing measured; give more --seconds"
    return f"{name:<18} {kind:<5} {workers} worker{'s' * (workers > 1):<1}  {told}"


def choose_data(name: str, data: Data, data_dir: str) -> Data:
    """Return the data to train on: in `data_dir`, or generated instead of CIFAR-10."""
    if data_dir or data.source == "shapes":
        return replace(data, dir=data_dir if data.source != "shapes" else "")
    if data.source == "cifar10":  # images of the same shape, with as many classes
        return replace(data, source="shapes", dir="", train_size=5_000, test_size=10, validation=0)
    raise UserError(f"the recipe {name} needs its data: give --data.dir DIR")
