"""Engines: how the workers of a place advance a state together (the protocol is in `base`)."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

ENGINES = {
    "collective": "paceline.engines.collective",
    "parameter_server": "paceline.engines.parameter_server.engine",
    "object_store": "paceline.engines.object_store.engine",
}


def engine_module(name: str) -> ModuleType:
    """Import and return the module of an engine; its `open_engine` is a `base.OpenEngine`."""
    return import_module(ENGINES[name])
