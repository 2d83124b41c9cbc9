"""Where workers run: a name for each system, and the module that starts workers on it, imported only when asked for."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from paceline.config.job import Job
from paceline.messages import Send

PLACES = {
    "local": "paceline.places.local",
    "tf_config": "paceline.places.tf_config",
    "ray": "paceline.places.ray",
    "spark": "paceline.places.spark.place",
}


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run a job in its place; every message of its workers goes to `listen`. Returns the result."""
    name = job.place.on
    if name == "auto":
        name = "tf_config" if os.environ.get("TF_CONFIG") else "local"
    return import_module(PLACES[name]).launch(job, listen)
