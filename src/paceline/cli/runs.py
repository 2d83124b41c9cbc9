"""What shows runs and recipes: `paceline runs`, `report`, `tensorboard`, `recipes`."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from paceline.cli.parse import DataFolder, RunNames
from paceline.cli.tables import print_table, shown
from paceline.errors import UserError, public
from paceline.experiment.recipes.table import recipes


@dataclass(frozen=True)
class ListRuns:
    """List runs, and the commands that continue unfinished ones: paceline runs [DIR]

    Example: paceline runs --sort accuracy
    """

    dir: DataFolder = "runs"
    """Folder that contains the run folders."""
    sort: Literal["name", "state", "step", "accuracy", "loss", "speed", "changed"] = "changed"
    """Column to sort by. The newest, best or fastest run comes first."""

    def __call__(self) -> int:
        from paceline.api import functions as api

        rows = api.runs(self.dir, sort=self.sort)
        if not rows:
            raise UserError(f"there are no runs in {self.dir}; `paceline train` makes one")
        headings = ("name", "state<", "step", "accuracy", "loss", "images/s", "changed")
        cells = (
            (
                row.name,
                row.state,
                shown(row.step, ",.0f"),
                shown(row.accuracy, ".4f"),
                shown(row.loss, ".4f"),
                shown(row.speed, ",.0f"),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(row.changed)),
            )
            for row in rows
        )
        print_table(headings, cells, whole=True)
        for row in rows:
            if row.note:
                label = "resume" if row.state == "unfinished" else row.state
                print(public(f"{label} {row.name}: {row.note}"))
        return 0


@dataclass(frozen=True)
class WriteReport:
    """Write one self-contained page about one or several runs: paceline report RUN... -o FILE

    The page has the curves, the classes that the model confuses, its worst mistakes, and what
    differs between the runs.

    Example: paceline report runs/shapes-6d2c1f04 runs/shapes-41b6c3aa -o report.html
    """

    runs: RunNames
    """Run folders, or names of runs in runs/."""
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = "report.html"
    """The file to write."""
    force: bool = False
    """Replace the file if it exists."""

    def __call__(self) -> int:
        from paceline.api import functions as api

        _check_given(self.runs)
        left_out = api.report(self.runs, self.out, force=self.force)
        for line in left_out:
            print(f"paceline: left out: {line}", file=sys.stderr)
        print(f"ready: {self.out}")
        return 1 if left_out else 0


@dataclass(frozen=True)
class TensorBoard:
    """Start TensorBoard on one or several runs: paceline tensorboard RUN ...

    Ctrl-C ends it.

    Example: paceline tensorboard runs/shapes-6d2c1f04 runs/shapes-77aa01bc --port 6007
    """

    runs: RunNames
    """Run folders, or names of runs in runs/."""
    port: int = 0
    """Port to listen at. 0 takes 6006, or the next port that is free."""
    host: str = "localhost"
    """Address to listen at. Use 0.0.0.0 to allow other machines."""

    def __call__(self) -> int:
        from paceline.run_folder.finding import existing_run

        _check_given(self.runs)
        folders = {existing_run(run).path.resolve() for run in self.runs}
        taken = Counter(folder.name for folder in folders)
        names = {each: each.name if taken[each.name] == 1 else str(each) for each in folders}
        runs = ",".join(f"{name}:{folder}" for folder, name in names.items())
        command = [sys.executable, "-m", "tensorboard.main", "--logdir_spec", runs]
        command += ["--host", self.host, *(["--port", str(self.port)] if self.port else [])]
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
        os.execve(sys.executable, command, os.environ | quiet)


def _check_given(runs: Sequence[str]) -> None:
    if not runs:
        raise UserError("RUN is missing; give run folders, or names of runs (see paceline runs)")


@dataclass(frozen=True)
class Recipes:
    """List the recipes that `paceline train` knows: paceline recipes

    Example: paceline recipes
    """

    def __call__(self) -> int:
        print_table(("recipe", "what it is<"), recipes().items())
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
