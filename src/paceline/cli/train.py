"""`paceline train`, and the lists a person needs before it: `recipes` and `spark-script`."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from paceline.cli.tables import print_table
from paceline.errors import Interrupted, WorkerFailed
from paceline.experiment.experiment import Experiment
from paceline.experiment.names import changed_flags
from paceline.experiment.recipes.table import describe_recipes, get_recipe
from paceline.job import Job, Place, Run
from paceline.requests import DescribeRequest


@dataclass(frozen=True)
class Train:
    """Train a recipe, or continue its unfinished run: paceline train [RECIPE] [flags]

    The default recipe is `shapes`. Defaults shown below come from the chosen recipe.

    Example: paceline train cifar10-fast --data.dir data --workers 2
    """

    recipe: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress, tyro.conf.arg(metavar="RECIPE")]
    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    place: Annotated[Place, tyro.conf.arg(name="")]
    run: Annotated[Run, tyro.conf.arg(name="")]
    dry_run: bool = False
    """Print every derived number and the table of layers, and exit without training."""
    json: bool = False
    """Also print the result as one line of JSON, after everything else."""

    @classmethod
    def of_recipe(cls, name: str) -> Train:
        """Return the defaults of all flags for a recipe."""
        return cls(name, get_recipe(name), Place(), Run())

    def __call__(self) -> int:
        from paceline.run_folder.finding import default_path

        run_dir = self.run.run_dir or str(default_path(self.recipe, self.experiment))
        run = dataclasses.replace(self.run, run_dir=run_dir)
        request = DescribeRequest() if self.dry_run else None
        job = Job(self.experiment, self.place, run, request=request)
        try:
            result = _describe(job) if self.dry_run else _train(job)
        except Interrupted as signal:
            print(f"{signal}; the same command continues from here", file=sys.stderr)
            return signal.exit_code
        if self.run.stop_at and not self.dry_run and not result["finished"]:
            stopped = f"stopped after step {result['step']:,}; this continues: {self._resume()}"
            print(stopped, file=sys.stderr)
        if self.json:
            print(json.dumps(result))
        return 0

    def _resume(self) -> str:
        """Return this command without --stop-at."""
        words = changed_flags(self.of_recipe(self.recipe), self)
        place = words.index("--stop-at")
        return shlex.join(["paceline", "train", self.recipe, *words[:place], *words[place + 2 :]])


def _train(job: Job) -> dict[str, Any]:
    from paceline.api.progress import Progress
    from paceline.launch import launch

    with Progress() as progress:
        return launch(job, progress.handle)


def _describe(job: Job) -> dict[str, Any]:
    """Print what a dry run finds; keep its folder only if it failed and left a log to read."""
    from paceline.launch import launch

    folder = tempfile.mkdtemp(prefix="paceline-dry-run-")
    dry = dataclasses.replace(job, run=dataclasses.replace(job.run, run_dir=folder))
    try:
        result = launch(dry, lambda message: None)
    except WorkerFailed:
        raise
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
    print(result["description"])
    return {"run_dir": job.run.run_dir, **result["numbers"]}


@dataclass(frozen=True)
class Recipes:
    """List the recipes that `paceline train` knows: paceline recipes

    Example: paceline recipes
    """

    def __call__(self) -> int:
        print_table(("recipe", "what it is<"), describe_recipes().items())
        return 0


@dataclass(frozen=True)
class SparkScript:
    """Print the path of the script for spark-submit: paceline spark-script [--zip FILE]

    Example: spark-submit --master URL $(paceline spark-script) train smoke --workers 2
    """

    zip: str = ""
    """Write this package to a zip file for spark-submit --py-files, and print its path instead."""

    def __call__(self) -> int:
        if self.zip:
            from paceline.places.spark.session import write_package

            print(write_package(Path(self.zip)))
        else:
            print(Path(__file__).with_name("spark_script.py"))
        return 0
