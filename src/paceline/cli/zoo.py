"""`paceline zoo` and `paceline reproduce`: trained models, and whether they can be made again."""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from paceline.cli.parse import RunName
from paceline.cli.results import DataFlags
from paceline.cli.tables import print_table, shown
from paceline.errors import UserError

if TYPE_CHECKING:
    from paceline.experiment.experiment import Experiment

EntryName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]


@dataclass(frozen=True)
class ListZoo:
    """List the trained models available as zoo:NAME: paceline zoo

    Example: paceline zoo
    """

    def __call__(self) -> int:
        from paceline.extras.zoo import FOLDER, list_zoo

        rows = list_zoo()
        if not rows:
            print(f"the zoo is empty; set {FOLDER} to a folder of entries")
            return 0
        headings = ("name", "steps", "accuracy", "digest<", "command<")
        cells = (
            (
                row.name,
                f"{row.step:,}",
                shown(row.test_accuracy, ".4f"),
                row.state_sha256[:16],
                row.command,
            )
            for row in rows
        )
        print_table(headings, cells)
        return 0


@dataclass(frozen=True)
class AddToZoo:
    """Make an entry of the zoo from a finished run: paceline zoo add RUN NAME OUT

    It trains the first steps again, to store their digest, and needs the data for that.

    Example: paceline zoo add runs/shapes-6d2c1f04 shapes-resnet8 zoo --steps 20
    """

    run: RunName
    """Folder of the run, or its name in runs/."""
    name: EntryName
    """Name of the entry."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of entries to add it to."""
    command: str = ""
    """Command that made the run, for the table."""
    steps: int = 20
    """Number of steps after which the digest of the state is stored."""
    data: DataFlags = field(default_factory=DataFlags)

    def __call__(self) -> int:
        from paceline.extras.zoo import Row, add_entry
        from paceline.run_folder.finding import existing_run
        from paceline.versions import machine

        run = existing_run(self.run)
        result = run.read_result()
        if not result or not result["finished"]:
            raise UserError(f"{run.path} is not finished; train it to its end first")
        steps = min(self.steps, result["step"])
        first = train_first(run.experiment(), run.kernels(), steps % result["step"], self.data.dir)
        row = Row(
            name=self.name,
            command=self.command or f"paceline reproduce {shlex.quote(self.name)}",
            step=result["step"],
            test_accuracy=result["test_accuracy"],
            state_sha256=result["state_sha256"],
            first_steps=steps,
            first_sha256=first["state_sha256"],
            kernels=run.kernels(),
            cpu=machine()["cpu"],
        )
        print(f"wrote {add_entry(row, run.path, Path(self.out))}")
        return 0


@dataclass(frozen=True)
class FetchFromZoo:
    """Copy an entry of another zoo to this machine: paceline zoo fetch NAME FROM

    Afterwards zoo:NAME stands for it. FROM is a folder of entries: of a clone of Paceline, on a
    shared disk, or a URL (https://, s3://, gs:// ...).

    Example: paceline zoo fetch cifar10-speedrun zoo
    """

    name: EntryName
    """Name of the entry."""
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FROM")]
    """Folder that has the entry, or its URL."""

    def __call__(self) -> int:
        from paceline.extras.zoo import fetch_entry

        print(f"wrote {fetch_entry(self.source, self.name)}")
        return 0


@dataclass(frozen=True)
class Reproduce:
    """Train an entry of the zoo again and compare the digest: paceline reproduce NAME [--steps N]

    The exit code is 0 if the digest is the same, otherwise 1. The bits need the same library
    versions, kernels and kind of CPU as the entry.

    Example: paceline reproduce cifar10-resnet20 --steps 20 --data.dir data
    """

    name: EntryName
    """Name of the entry."""
    steps: int = 0
    """Number of steps to train: that of the entry's row. 0 trains to the end."""
    data: DataFlags = field(default_factory=DataFlags)

    def __call__(self) -> int:
        from paceline.extras.zoo import find_row
        from paceline.versions import machine

        row = find_row(self.name)
        if self.steps not in (0, row.first_steps, row.step):
            raise UserError(
                f"steps is {self.steps}; {row.name} has digests after {row.first_steps} and "
                f"{row.step} steps"
            )
        steps = self.steps or row.step
        wanted = row.state_sha256 if steps == row.step else row.first_sha256
        stop_at = steps % row.step
        result = train_first(row.experiment, row.kernels, stop_at, self.data.dir)
        found = result["state_sha256"]
        same = found == wanted
        print(
            f"{row.name} after {steps:,} steps: {'the same digest' if same else 'ANOTHER digest'}"
        )
        print(f"zoo   {wanted}\nhere  {found}")
        if not same and machine()["cpu"] != row.cpu:
            print(f"another CPU can give other bits: zoo {row.cpu}, here {machine()['cpu']}")
        return 0 if same else 1


def train_first(
    experiment: Experiment, kernels: str, stop_at: int, data_dir: str
) -> dict[str, Any]:
    """Train an experiment up to a step, or with 0 to its end, in a temporary folder."""
    from paceline.api.progress import Progress
    from paceline.job import Job, Place, Run
    from paceline.launch import launch

    where = os.path.abspath(data_dir) if data_dir else experiment.data.dir
    experiment = replace(
        experiment,
        data=replace(experiment.data, dir=where),
        kernels="own" if kernels == "own" else "tensorflow",
    )
    with tempfile.TemporaryDirectory(prefix="paceline-reproduce-") as folder:
        run = Run(run_dir=str(Path(folder, "run")), stop_at=stop_at)
        with Progress() as progress:
            return launch(Job(experiment, Place(), run), progress.handle)
