"""Paceline trains ResNets, and any Keras image classifier, data-parallel.

The same experiment gives the same bits in every place. Importing the package does not load
TensorFlow; what needs TensorFlow is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api.functions import evaluate, export, predict, recipes, report, runs
    from paceline.api.search import search
    from paceline.api.training import Result, train
    from paceline.data.source import Source, Split
    from paceline.errors import UserError
    from paceline.experiment.experiment import (
        Augmentation,
        Average,
        Data,
        EarlyStopping,
        Experiment,
        Group,
        Loss,
        Model,
        Optimizer,
        Records,
        Scaling,
        Schedule,
        Sync,
    )
    from paceline.experiment.recipes.table import get_recipe
    from paceline.extras.keras_callbacks import KerasCallbacks
    from paceline.extras.search.run_search import SearchResult
    from paceline.extras.weights import Weights
    from paceline.job import Place, Run
    from paceline.results.predictor import load_predictor
    from paceline.results.trained_model import load

__all__ = [
    "Augmentation",
    "Average",
    "Data",
    "EarlyStopping",
    "Experiment",
    "Group",
    "KerasCallbacks",
    "Loss",
    "Model",
    "Optimizer",
    "Place",
    "Records",
    "Result",
    "Run",
    "Scaling",
    "Schedule",
    "SearchResult",
    "Source",
    "Split",
    "Sync",
    "UserError",
    "Weights",
    "evaluate",
    "export",
    "get_recipe",
    "load",
    "load_predictor",
    "predict",
    "recipes",
    "report",
    "runs",
    "search",
    "train",
]

_NAMES = {
    "paceline.api.functions": ("evaluate", "export", "predict", "recipes", "report", "runs"),
    "paceline.api.search": ("search",),
    "paceline.api.training": ("Result", "train"),
    "paceline.data.source": ("Source", "Split"),
    "paceline.errors": ("UserError",),
    "paceline.experiment.experiment": (
        *("Augmentation", "Average", "Data", "EarlyStopping", "Experiment", "Group", "Loss"),
        *("Model", "Optimizer", "Records", "Scaling", "Schedule", "Sync"),
    ),
    "paceline.experiment.recipes.table": ("get_recipe",),
    "paceline.extras.keras_callbacks": ("KerasCallbacks",),
    "paceline.extras.search.run_search": ("SearchResult",),
    "paceline.extras.weights": ("Weights",),
    "paceline.job": ("Place", "Run"),
    "paceline.results.predictor": ("load_predictor",),
    "paceline.results.trained_model": ("load",),
}
"""Module -> the public names that it defines. It is imported when one of them is first used."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
