"""The plan of a search: the settings of `paceline search`, and the trials that follow from them."""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from paceline.errors import UserError
from paceline.experiment.experiment import Experiment
from paceline.experiment.fields import Json, Range, check_fields
from paceline.experiment.names import apply_settings
from paceline.extras.search.space import Settings, Space, draw
from paceline.job import Job, Place, Run, TrackerName
from paceline.run_folder.folder import default_path
from paceline.storage.files import plain

USUAL_TRIALS = 16


@dataclass(frozen=True)
class Options:
    """How a search chooses settings, stops trials, and where it writes."""

    trials: Annotated[int, Range(0, 10_000)] = 0
    """Number of trials. Each has different settings, drawn with --seed. 0 means 16, or every
    combination if there are fewer. The same command with a larger number adds trials."""
    scheduler: Literal["asha", "none"] = "asha"
    """Which trials are stopped early. asha: after 1/16 and 1/4 of its training, a trial continues
    if it is in the top quarter of those that have reached this point. none: no trial."""
    max_concurrent: Annotated[int, Range(0)] = 0
    """Maximum number of concurrent trials. 0 starts as many as the CPUs or GPUs allow."""
    search_dir: str = ""
    """Search folder, with a run folder for each trial.
    Empty means searches/<recipe>-<hash of the search>, so that the same command continues."""
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
    facts: Json
    """Everything that decides the settings of trials."""
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
            f"on is {place.on!r}; a search always runs on Ray (--ray.address names a cluster); "
            "leave out --on"
        )
    drawn = draw(space, options.trials or USUAL_TRIALS, experiment.seed)
    if len(drawn) < options.trials:
        raise UserError(
            f"trials is {options.trials}, but over has only {len(drawn)} different combinations; "
            "use fewer --trials, or more values or wider ranges"
        )
    over = {name: vars(space[name]) for name in sorted(space)}
    facts = plain({"recipe": recipe, "experiment": experiment.to_json(), "over": over})
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]
    where = options.search_dir.rstrip("/") or f"searches/{recipe}-{digest}"
    run = Run(keep=2, track=options.track, trust_code=options.trust_code)
    cores = place.cores or max(1, int(place.ray.cpus_per_worker))
    on_one_node = replace(place, on="local", cores=cores)
    trials = []
    for number, settings in enumerate(drawn, 1):
        own: Experiment = apply_settings(settings, experiment)[0]
        _check(own)
        in_folder = replace(run, run_dir=str(default_path(recipe, own, where)))
        trials.append(Trial(number, settings, Job(own, on_one_node, in_folder)))
    return SearchPlan(recipe, facts, space, options, where, tuple(trials), place)


def _check(experiment: Experiment) -> None:
    if not experiment.data.validation:
        raise UserError(
            "a search compares trials on a validation split, never on the test set, and there is "
            "none: pass --data.validation N to hold out N training examples"
        )
    if experiment.sync.method == "async":
        raise UserError(
            "sync.method is 'async', which gives different numbers every time; a search compares "
            "runs: use gradients or weights"
        )
