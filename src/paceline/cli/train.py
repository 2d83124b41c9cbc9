"""`paceline train`: trains an experiment, or describes what it would train."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from paceline.cli.parse import data_folder
from paceline.errors import Interrupted, WorkerFailed, printable
from paceline.experiment.experiment import Experiment, check_source
from paceline.experiment.fields import Json
from paceline.experiment.recipes.table import get_recipe
from paceline.job import Job, Place, Run
from paceline.requests import DescribeRequest
from paceline.storage.files import to_log


@dataclass(frozen=True)
class Train:
    """Train a recipe, or continue its unfinished run: paceline train [RECIPE] [flags]

    The default recipe is `shapes`. Defaults shown below come from the chosen recipe. A file of
    settings, such as my.toml, can take the place of the recipe.

    Example: paceline train cifar10-fast --data.dir data --workers 2
    """

    recipe: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress, tyro.conf.arg(metavar="RECIPE")]
    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    place: Annotated[Place, tyro.conf.arg(name="")]
    run: Annotated[Run, tyro.conf.arg(name="")]
    dry_run: bool = False
    """Print every derived number and the table of layers, and exit without training."""
    save_config: str = ""
    """JSON file to write the settings to, for `paceline train FILE`; nothing is trained."""
    json: bool = False
    """Also print the result as one line of JSON, after everything else."""

    @classmethod
    def of_recipe(cls, name: str, arguments: Sequence[str] = ()) -> Train:
        """Return the defaults of all flags for a recipe, and for the folder in the arguments."""
        if name.endswith((".toml", ".json")):
            from paceline.cli.settings_file import load_parts

            name, parts = load_parts(name, arguments, Place(), Run())
            return cls(name, *parts)
        return cls(name, get_recipe(name, data_folder(arguments)), Place(), Run())

    def __call__(self) -> int:
        from paceline.run_folder.folder import default_path

        if self.save_config:
            from paceline.cli.settings_file import save_settings

            path = Path(self.save_config)
            save_settings(path, self.recipe, self.experiment, self.place, self.run)
            print(f"ready: paceline train {path}")
            return 0
        run_dir = self.run.run_dir or default_path(self.recipe, self.experiment)
        check_source(self.experiment.data)
        if self.experiment.data.source != "shapes":
            from paceline.formats.detect import require
            from paceline.launch import find_place

            # a task of a cluster finds it later, and tells the others
            on = find_place(os.environ) if self.place.on == "auto" else self.place.on
            require(self.experiment.data, on, run_dir)
        run = replace(self.run, run_dir=run_dir)
        request = DescribeRequest() if self.dry_run else None
        job = Job(self.experiment, self.place, run, request=request)
        try:
            result = _describe(job) if self.dry_run else _train(job)
        except Interrupted as signal:
            to_log(f"{signal}; the same command continues from here")
            return signal.exit_code
        if self.run.stop_at and not self.dry_run and not result.get("finished", True):
            stopped = f"stopped after step {result['step']:,}"
            to_log(f"{stopped}; the same command without --stop-at continues")
        if self.json:
            print(json.dumps(result))
        return 0


def _train(job: Job) -> Json:
    from paceline.api.progress import ProgressDisplay
    from paceline.launch import launch

    with ProgressDisplay() as progress:
        return launch(job, progress.handle)


def _describe(job: Job) -> Json:
    """Print what a dry run finds; keep its folder only if it failed and left a log to read."""
    from paceline.launch import launch

    folder = tempfile.mkdtemp(prefix="paceline-dry-run-")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        try:
            result = launch(replace(job, run=replace(job.run, run_dir=folder)), lambda _: None)
        except WorkerFailed:
            stack.pop_all()
            raise
    print(*map(printable, result["description"].splitlines()), sep="\n")
    return {"run_dir": job.run.run_dir, **result["numbers"]}
