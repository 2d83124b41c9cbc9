"""Engines: how the workers of a place advance a state together. A table of names, imported lazily."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

ENGINES = {
    "collective": "paceline.engines.collective",
    "parameter_server": "paceline.engines.parameter_server.engine",
    "object_store": "paceline.engines.object_store.engine",
}


def engine_module(name: str) -> ModuleType:
    """Return the module of an engine; its `open_engine` builds one."""
    return import_module(ENGINES[name])
