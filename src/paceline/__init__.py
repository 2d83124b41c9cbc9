"""Paceline trains ResNets, and any Keras image classifier, data-parallel.

The same experiment gives the same bits in every place. Importing the package does not load
TensorFlow; what needs TensorFlow is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api.functions import evaluate, export, predict, report, runs
    from paceline.api.search import search
    from paceline.api.training import Result, train
    from paceline.data.order import order
    from paceline.data.source import Source, Split
    from paceline.errors import UserError
    from paceline.experiment.data import Augmentation, Data, Records, Scaling
    from paceline.experiment.experiment import Experiment
    from paceline.experiment.model import Model
    from paceline.experiment.optimizer import (
        Average,
        EarlyStopping,
        Group,
        Loss,
        Optimizer,
        Schedule,
        Sync,
    )
    from paceline.experiment.recipes.table import get_recipe, recipes
    from paceline.extras.keras_callbacks import KerasCallbacks
    from paceline.extras.search.run_search import SearchResult
    from paceline.extras.weights import Weights
    from paceline.job import Place, Run
    from paceline.models.accelerate import accelerate
    from paceline.results.predict import load_predictor
    from paceline.results.trained_model import load

__all__ = ["Augmentation", "Average", "Data", "EarlyStopping", "Experiment", "Group"]
__all__ += ["KerasCallbacks", "Loss", "Model", "Optimizer", "Place", "Records", "Result", "Run"]
__all__ += ["Scaling", "Schedule", "SearchResult", "Source", "Split", "Sync", "UserError"]
__all__ += ["Weights", "accelerate", "evaluate", "export", "get_recipe", "load"]
__all__ += ["load_predictor", "order", "predict", "recipes", "report", "runs", "search", "train"]

_NAMES = {
    "api.functions": ("evaluate", "export", "predict", "report", "runs"),
    "api.search": ("search",),
    "api.training": ("Result", "train"),
    "data.order": ("order",),
    "data.source": ("Source", "Split"),
    "errors": ("UserError",),
    "experiment.data": ("Augmentation", "Data", "Records", "Scaling"),
    "experiment.experiment": ("Experiment",),
    "experiment.model": ("Model",),
    "experiment.optimizer": (
        *("Average", "EarlyStopping", "Group", "Loss", "Optimizer", "Schedule", "Sync"),
    ),
    "experiment.recipes.table": ("get_recipe", "recipes"),
    "extras.keras_callbacks": ("KerasCallbacks",),
    "extras.search.run_search": ("SearchResult",),
    "extras.weights": ("Weights",),
    "job": ("Place", "Run"),
    "models.accelerate": ("accelerate",),
    "results.predict": ("load_predictor",),
    "results.trained_model": ("load",),
}
"""Module -> the public names that it defines. It is imported when one of them is first used."""


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"paceline.{module}"), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
