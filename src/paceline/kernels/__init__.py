"""Paceline's kernels for CPUs with AVX2 and FMA: convolutions, and batch normalization with what
follows.

`accelerate(model)` rewrites a Keras model to use them. Runs do that by themselves
(`--kernels auto`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.kernels.rewrite import accelerate

__all__ = ["accelerate"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from paceline.kernels import rewrite

        return rewrite.accelerate
    raise AttributeError(f"module 'paceline.kernels' has no attribute {name!r}")
