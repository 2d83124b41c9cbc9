"""Where workers run: a module for each place, imported only when it is used.

`place_kinds` has the table of places.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from paceline.job import Job
from paceline.messages import Send
from paceline.place_kinds import PLACES
from paceline.places import kubernetes, slurm


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run a job in its place, pass its messages to `listen`, and return its result."""
    name: str = job.place.on
    if name == "auto":
        name = find_place()
    result: dict[str, Any] = import_module(PLACES[name].module).launch(job, listen)
    return result


def find_place() -> str:
    """Return the place that the environment shows: a platform's task, or else this machine."""
    if os.environ.get("TF_CONFIG"):
        return "tf_config"
    if kubernetes.in_an_indexed_job():
        return "kubernetes"
    return "slurm" if slurm.in_a_step() else "local"
