"""Experiment trackers by name (`--track mlflow wandb`): what a run measures, in somebody's service.

The chief sends the metrics of metrics.jsonl from a thread of its own. A tracker that cannot be
reached never stops or slows a training: what it missed is sent when it is back.

To add a tracker: write a module with a class `Client` that follows `tracker.Client`, and add a line
to the table.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from paceline.errors import UserError

TRACKERS = {
    "mlflow": ("paceline.extras.tracking.mlflow_client", "mlflow", "paceline[mlflow]"),
    "wandb": ("paceline.extras.tracking.wandb_client", "wandb", "paceline[wandb]"),
}
"""Name -> the module of its client, the package that it needs, and what installs that."""


def load_client(name: str) -> Any:
    """Return the class `Client` of a tracker; a missing package is a UserError."""
    module, package, extra = TRACKERS[name]
    try:
        import_module(package)
    except ImportError as error:
        raise UserError(
            f"track is {name}, which needs the package {package} where the chief runs: "
            f"pip install '{extra}'"
        ) from error
    return import_module(module).Client
