"""Paceline trains ResNets, and any Keras image classifier, data-parallel.

The same experiment gives the same bits in every place. Importing the package does not load
TensorFlow; what needs TensorFlow is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.api.functions import (
    Result,
    evaluate,
    export,
    predict,
    recipes,
    report,
    runs,
    search,
    train,
)
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
from paceline.job import Place, Run

if TYPE_CHECKING:
    from paceline.data.source import Source, Split
    from paceline.extras.keras_callbacks import KerasCallbacks
    from paceline.extras.search.run_search import SearchResult
    from paceline.extras.weights import Weights
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

_LATE = {
    "KerasCallbacks": "paceline.extras.keras_callbacks",
    "SearchResult": "paceline.extras.search.run_search",
    "Source": "paceline.data.source",
    "Split": "paceline.data.source",
    "Weights": "paceline.extras.weights",
    "load": "paceline.results.trained_model",
    "load_predictor": "paceline.results.predictor",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
