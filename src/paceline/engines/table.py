"""Engines: how the workers of a place advance a state together (the protocol is in `base`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.engines.base import OpenEngine

ENGINES = {
    "collective": "paceline.engines.collective",
    "parameter_server": "paceline.engines_more.parameter_server.ps_engine",
    "object_store": "paceline.engines_more.object_store.object_store_engine",
}


def find_engine(name: str) -> OpenEngine:
    """Import the module of an engine, and return its `open_engine`."""
    return import_module(ENGINES[name]).open_engine
