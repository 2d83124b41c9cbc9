"""The plan of a search: the settings of `paceline search`, and the trials that follow from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Range, check_fields
from paceline.experiment.names import apply_settings
from paceline.extras.search.space import MOST_TRIALS, Settings, Space, describe, draw, grid
from paceline.job import Job, Place, Run, TrackerName
from paceline.run_folder.folder import default_path

USUAL_TRIALS = 16


@dataclass(frozen=True)
class Options:
    """How a search chooses settings, stops trials, and where it writes."""

    trials: Annotated[int, Range(0, MOST_TRIALS)] = 0
    """Number of trials. 0 means 16, or every combination of a grid. The same command with a larger
    number adds trials."""
    method: Literal["random", "grid"] = "random"
    """How settings are chosen. random: drawn with --seed. grid: every combination of lists."""
    scheduler: Literal["asha", "none"] = "asha"
    """Which trials are stopped early. asha: trials that are worse than most others after the same
    fraction of their training. none: no trial."""
    metric: Literal["accuracy", "loss"] = "accuracy"
    """Metric on the validation split that decides."""
    grace: Annotated[float, Range(0, 1, excludes_lowest=True)] = 1 / 16
    """Fraction of its training that every trial completes before it can be stopped (asha)."""
    reduction: Annotated[float, Range(1, excludes_lowest=True)] = 4.0
    """One in this many trials continues at each comparison (asha). The first comparison is after
    the fraction `grace` of the training, the next after this many times as much, and so on."""
    max_concurrent: Annotated[int, Range(0)] = 0
    """Maximum number of concurrent trials. 0 means as many as there are CPUs or GPUs for."""
    search_dir: str = ""
    """Search folder, with a run folder for each trial.
    Empty means searches/<recipe>-<hash of the search>, so that the same command continues."""
    keep: Annotated[int, Range(1)] = 2
    """Number of newest checkpoints that each trial keeps, in addition to the best one."""
    track: tuple[TrackerName, ...] = ()
    """Experiment trackers that get each trial as a run: mlflow, wandb."""
    trust_code: bool = False
    """If the code of model.build or data.build is missing, run the copies in the run folders."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Trial:
    """One training of a search: its settings, and the job with all of them."""

    number: int
    """From 1."""
    settings: Settings
    job: Job

    @property
    def words(self) -> str:
        """Return its settings as people write them."""
        return "  ".join(f"{n.replace('_', '-')}={value}" for n, value in self.settings.items())

    @property
    def name(self) -> str:
        """Return the name of its run."""
        return self.job.run.run_dir.rpartition("/")[2]


@dataclass(frozen=True)
class SearchPlan:
    """A search with all its trials in the folder `where`."""

    recipe: str
    experiment: Experiment
    """What all trials have in common."""
    space: Space
    options: Options
    where: str
    trials: tuple[Trial, ...]
    place: Place
    """The cluster, and the workers of each trial."""


def build_search(
    recipe: str, experiment: Experiment, space: Space, place: Place, options: Options
) -> SearchPlan:
    """Return a search with all its trials; raise UserError if one of them cannot be trained."""
    if place.on not in ("auto", "ray"):
        raise UserError(
            f"on is {place.on!r}; a search runs on Ray, here or on the cluster of --ray.address: "
            "leave out --on"
        )
    # everything that decides the settings of trials
    facts = [experiment.digest(), options.method, *sorted(describe(space))]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
    where = options.search_dir.rstrip("/") or f"searches/{recipe}-{digest}"
    run = Run(keep=options.keep, track=options.track, trust_code=options.trust_code)
    cores = place.cores or max(1, int(place.ray.cpus_per_worker))
    on_one_node = replace(place, on="local", cores=cores)
    trials = []
    for number, settings in enumerate(_choose(space, options, experiment.seed), 1):
        own: Experiment = apply_settings(settings, experiment)[0]
        _check(own)
        in_folder = replace(run, run_dir=str(default_path(recipe, own, where)))
        trials.append(Trial(number, settings, Job(own, on_one_node, in_folder)))
    return SearchPlan(recipe, experiment, space, options, where, tuple(trials), place)


def _choose(space: Space, options: Options, seed: int) -> Sequence[Settings]:
    if options.method == "random":
        return draw(space, options.trials or USUAL_TRIALS, seed)
    combinations = grid(space)
    if options.trials and options.trials != len(combinations):
        raise UserError(
            f"trials is {options.trials}, but the grid has {len(combinations)} combinations, and "
            "all are tried; leave out --trials, or use --method random"
        )
    return combinations


def _check(experiment: Experiment) -> None:
    if not experiment.data.validation:
        raise UserError(
            "a search compares trials on a validation split, never on the test set, and there is "
            "none: give --data.validation N to hold out N training examples"
        )
    if experiment.sync.method == "async":
        raise UserError(
            "sync.method is 'async', which gives different numbers every time; a search compares "
            "runs: use gradients or weights"
        )
