"""`paceline.search`: a search for good settings on Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.api.training import own_settings, run_name
from paceline.experiment.experiment import Experiment
from paceline.experiment.names import from_recipe
from paceline.extras.search.options import Options, build_search
from paceline.extras.search.space import build_space
from paceline.job import Place

if TYPE_CHECKING:
    from paceline.api.training import Arrays, OwnData, OwnModel
    from paceline.extras.search.run_search import SearchResult


def search(
    experiment: Experiment | str = "shapes",
    *,
    over: Mapping[str, str | Sequence[Any]],
    data: OwnData | None = None,
    test: Arrays | None = None,
    classes: Sequence[str] | None = None,
    model: OwnModel | None = None,
    place: Place | None = None,
    progress: bool = True,
    **settings: Any,
) -> SearchResult:
    """Search for good settings of an experiment on Ray, or continue an unfinished search.

    The validation split decides: data.validation must be above 0. A trial uses one CPU by default.

    Args:
        over: Settings to vary, such as {"schedule.rate": "0.05..0.8:log", "seed": [1, 2]}.
        progress: Whether to print a line for each evaluation.
        **settings: Settings of the experiment and the place, as in `train`, which describes all
            other arguments, and the flags of `paceline search`: trials, scheduler ...

    Example:
        found = paceline.search("smoke", over={"seed": [1, 2]}, data__validation=48)
    """
    from paceline.extras.search.run_search import run_search

    settings |= own_settings(data, test, classes, model)
    chosen, where, options = from_recipe(experiment, settings, place or Place(), Options())
    name = experiment if isinstance(experiment, str) else run_name(chosen)
    plan = build_search(name, chosen, build_space(over, chosen), where, options)
    return run_search(plan, print if progress else lambda line: None)
