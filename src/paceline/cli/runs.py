"""What shows runs, recipes, the zoo and this machine: `paceline runs`, `zoo`, `doctor` ..."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from paceline.cli.parse import DataFolder, RunNames
from paceline.cli.results import DataFlags
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
    """Write a self-contained HTML page about one or several runs: paceline report RUN... -o FILE

    The page shows curves, the classes that the model confuses, its worst mistakes, and the
    differences between the runs.

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

        if not self.runs:
            raise UserError("RUN is missing; give run folders, or names of runs")
        left_out = api.report(self.runs, self.out, force=self.force)
        for line in left_out:
            print(f"paceline: left out: {line}", file=sys.stderr)
        print(f"ready: {public(self.out)}")
        return 1 if left_out else 0


@dataclass(frozen=True)
class ListZoo:
    """List the trained models available as zoo:NAME: paceline zoo

    `paceline zoo fetch` brings the models that are not on this machine yet.

    Example: paceline zoo
    """

    def __call__(self) -> int:
        from paceline.extras.zoo import entries_here, list_zoo

        headings = ("name", "steps", "accuracy", "size", "where<", "digest<", "command<")
        rows, here = [], entries_here()
        for row in list_zoo():
            accuracy, size = shown(row.test_accuracy, ".4f"), f"{row.bytes / 1e6:.1f} MB"
            where, digest = "here" if row.name in here else "fetch", row.state_sha256[:16]
            rows.append((row.name, f"{row.step:,}", accuracy, size, where, digest, row.command))
        print_table(headings, rows, whole=True)
        return 0


@dataclass(frozen=True)
class FetchEntry:
    """Bring a trained model to this machine: paceline zoo fetch NAME FROM

    Archives of the models belong to each release. Their digests are checked.

    Example: paceline zoo fetch cifar10-speedrun downloads
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the entry, as `paceline zoo` lists it."""
    origin: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FROM")]
    """Folder or URL that contains the archives of the release."""

    def __call__(self) -> int:
        from paceline.extras.zoo import PREFIX, fetch_entry

        folder = fetch_entry(self.name, self.origin)
        print(f"ready: {PREFIX}{folder.name}")
        return 0


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
    """Print the path of the script for spark-submit: paceline spark-script

    Example: spark-submit --master URL $(paceline spark-script) train smoke --workers 2
    """

    def __call__(self) -> int:
        print(Path(__file__).with_name("spark_script.py"))
        return 0


@dataclass(frozen=True)
class Doctor:
    """Check this machine and report what is good, slow or broken: paceline doctor

    Each line says what to do. The exit code is 1 if something is broken.

    Example: paceline doctor --run-dir /mnt/shared/runs
    """

    run_dir: str = "runs"
    """Folder where runs will be written."""
    bits: str = ""
    """Recipe to check instead of the machine: report the operations that decide its bits, and
    whether every CPU gives the same bits."""
    data: DataFlags = field(default_factory=DataFlags)

    def __call__(self) -> int:
        from rich.console import Console
        from rich.text import Text

        from paceline.extras.doctor import examine_machine

        console, broken = Console(), False
        styles = {"good": "green", "slow": "yellow", "broken": "red"}
        findings = examine_machine(self.run_dir)
        if self.bits:
            from paceline.extras.bits import examine_bits

            findings = examine_bits(self.bits, self.data.dir)
        for finding in findings:
            broken = broken or finding.state == "broken"
            state = Text(f"{finding.state:<7}", styles[finding.state])
            console.print(state, Text(f"{finding.what}: {finding.text}"), soft_wrap=True)
        return 1 if broken else 0
