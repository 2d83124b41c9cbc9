"""`paceline search`: trainings with different settings, and the table of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from paceline.cli.settings_file import load_parts
from paceline.cli.tables import print_table, shown
from paceline.experiment.experiment import Experiment
from paceline.extras.search.options import Options, SearchPlan, build_search
from paceline.extras.search.space import parse_over
from paceline.job import Place

if TYPE_CHECKING:
    from paceline.extras.search.run_search import SearchResult


@dataclass(frozen=True)
class Search:
    """Search for good settings of a recipe on Ray: paceline search [RECIPE] --over NAME=VALUES ...

    Each trial is a normal run in the search folder. Trials are compared on the validation split.
    The same command continues a search that was stopped or killed.

    Example: paceline search smoke --data.validation 48 --over schedule.rate=0.01..0.5:log
    """

    recipe: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress, tyro.conf.arg(metavar="RECIPE")]
    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    place: Annotated[Place, tyro.conf.arg(name="")]
    options: Annotated[Options, tyro.conf.arg(name="")]
    over: tuple[str, ...] = ()
    """Settings to vary, each as NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=VALUE,VALUE,...
    Names are those of the flags, such as schedule.rate."""
    dry_run: bool = False
    """Print the settings of all trials, and exit without training."""
    json: bool = False
    """Also print all trials as one line of JSON, after everything else."""

    @classmethod
    def of_recipe(cls, name: str, arguments: Sequence[str] = ()) -> Search:
        """Return the defaults of all flags for a recipe, and for the folder in the arguments."""
        name, parts = load_parts(name, arguments, Place(), Options())
        return cls(name, *parts)

    def __call__(self) -> int:
        from paceline.extras.search.run_search import run_search

        space = parse_over(self.over, self.experiment)
        plan = build_search(self.recipe, self.experiment, space, self.place, self.options)
        if self.dry_run:
            print(f"{len(plan.trials)} trials in {plan.where}")
            for trial in plan.trials:
                print(f"trial {trial.number}  {trial.words}")
            return 0
        result = run_search(plan, lambda line: print(line, flush=True))
        print_result(plan, result)
        if self.json:
            print(json.dumps(_json(result)))
        return 1 if result.crashed else 0


def print_result(plan: SearchPlan, result: SearchResult) -> None:
    """Print the table of all trials, and how to train the best one again."""
    names = [name.replace("_", "-") for name in plan.space]
    headings = ("trial", *names, "accuracy", "loss", "epochs", "state<", "digest<", "run<")
    rows = (
        (
            str(each.number),
            *(str(each.settings[name]) for name in plan.space),
            shown(each.accuracy, ".4f"),
            shown(each.loss, ".4f"),
            f"{each.epochs:.4g}",
            each.state,
            each.state_sha256[:12] or "-",
            each.run_dir.rpartition("/")[2],
        )
        for each in result.trials
    )
    print_table(headings, rows, whole=True)
    for line in result.crashed:
        print(f"paceline: {line}; the same command tries it again", file=sys.stderr)
    best = result.best
    if best:
        count = plan.trials[0].job.experiment.data.validation
        where = f"step {best.best_step:,}, checkpoint best of {best.run_dir}"
        print(f"best: trial {best.number}, validation accuracy {best.accuracy:.4f} ({where})")
        print(f"with {count:,} validation images, chance changes an accuracy by {count**-0.5:.3f}")
        print(f"train it again, with the same digest: {best.command}")
        print("train it on all training examples: the same without --data.validation")
    print(f"runs: paceline runs {result.search_dir} · page: {result.page}")


def _json(result: SearchResult) -> dict[str, object]:
    names = ("number", "settings", "run_dir", "state", "step", "accuracy", "loss", "state_sha256")
    trials = [
        {name: getattr(each, name) for name in (*names, "note", "command")}
        for each in result.trials
    ]
    return {"search_dir": result.search_dir, "page": result.page, "trials": trials}
