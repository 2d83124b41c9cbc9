"""Engines by name: how the workers of a place advance a state together."""

from __future__ import annotations

from importlib import import_module

from paceline.engines.base import Connect, Connection, WantsStop
from paceline.job import Job

ENGINES = {
    "collective": "paceline.engines.collective",
    "parameter_server": "paceline.engines_more.parameter_server.ps_engine",
    "object_store": "paceline.engines_more.object_store.object_store_engine",
}
"""Name -> the module whose `connect` begins it. It is imported only when it is used."""


def connect(job: Job, wants_stop: WantsStop) -> Connection:
    """Set up TensorFlow's devices and connect to the other workers, before the first tensor."""
    return find_connect(job.engine)(job, wants_stop)


def find_connect(name: str) -> Connect:
    """Return the function `connect` of an engine."""
    found: Connect = import_module(ENGINES[name]).connect
    return found
