"""Where workers run: a module for each place, imported only when it is used.

`config.places` has the table of places.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from paceline.config.job import Job
from paceline.config.places import PLACES
from paceline.messages import Send


def launch(job: Job, listen: Send) -> dict[str, Any]:
    """Run a job in its place, pass its messages to `listen`, and return its result."""
    name: str = job.place.on
    if name == "auto":
        name = "tf_config" if os.environ.get("TF_CONFIG") else "local"
    result: dict[str, Any] = import_module(PLACES[name].module).launch(job, listen)
    return result
