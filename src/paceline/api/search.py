"""`paceline.search`: a search for good settings on Ray Tune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.api.training import own_settings, run_name
from paceline.experiment.experiment import Experiment
from paceline.experiment.names import apply_settings
from paceline.experiment.recipes.table import get_recipe
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
    """Search for good settings of an experiment on Ray Tune, or continue an unfinished search.

    Each trial is a normal run in the folder of the search. The validation split decides, so
    data.validation must be above 0. The settings of the trials depend on `over` and the seed alone.

    Args:
        experiment: The name of a recipe (`paceline.recipes()` lists them), or an Experiment.
        over: Names of settings of the experiment, such as "schedule.rate", and for each
            "0.05..0.8", "0.05..0.8:log" or a list of values.
        data: Training data instead of the recipe's, as in `train`.
        test: Test images and labels, as in `train`.
        classes: Names of the classes of `data`.
        model: Your own model instead of the recipe's, as in `train`.
        place: The cluster and what each trial gets of it. By default each trial is one worker with
            one CPU, on a Ray that is started here or that RAY_ADDRESS names.
        progress: Whether to print a line for each evaluation.
        **settings: Further settings by name: those of the experiment and the place, as in `train`,
            and trials, method ("random" or "grid"), scheduler ("asha" or "none"), metric
            ("accuracy" or "loss"), grace, reduction, max_concurrent, search_dir, keep, track,
            trust_code. `paceline search --help` describes each.

    Returns:
        All trials, the best first, the folder and the page of the search.

    Raises:
        UserError: Something that you can correct, in one line.

    Example:
        result = paceline.search(
            "smoke", over={"schedule.rate": "0.01..0.5:log"}, trials=4, data=dict(validation=48)
        )
        print(result.best.settings, result.best.accuracy)
        paceline.evaluate(result.best.run_dir)
    """
    from paceline.extras.search.run_search import run_search

    base = get_recipe(experiment) if isinstance(experiment, str) else experiment
    settings |= own_settings(data, test, classes, model)
    chosen, where, options = apply_settings(settings, base, place or Place(), Options())
    name = experiment if isinstance(experiment, str) else run_name(chosen)
    plan = build_search(name, chosen, build_space(over, chosen), where, options)
    return run_search(plan, print if progress else lambda line: None)
