"""Paceline's kernels for CPUs: convolutions, batch normalization with what follows, and arithmetic
whose bits do not depend on the CPU.

`accelerate(model)` rewrites a Keras model to use them. Runs do that by themselves
(`--kernels auto`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.models.accelerate import accelerate

__all__ = ["accelerate"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module("paceline.models.accelerate").accelerate
    raise AttributeError(f"module 'paceline.kernels' has no attribute {name!r}")
