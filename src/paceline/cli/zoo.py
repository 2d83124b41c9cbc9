"""`paceline zoo` and `paceline reproduce`: trained models, and whether they can be made again."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro

from paceline.cli.results import DataFlags
from paceline.cli.tables import print_table, shown
from paceline.errors import UserError
from paceline.experiment.fields import Json

if TYPE_CHECKING:
    from paceline.experiment.experiment import Experiment


@dataclass(frozen=True)
class ListZoo:
    """List the trained models available as zoo:NAME: paceline zoo

    Example: paceline zoo
    """

    def __call__(self) -> int:
        from paceline.extras.zoo import list_zoo

        headings = ("name", "steps", "accuracy", "digest<", "command<")
        rows = []
        for row in list_zoo():
            accuracy, digest = shown(row.test_accuracy, ".4f"), row.state_sha256[:16]
            rows.append((row.name, f"{row.step:,}", accuracy, digest, row.command))
        print_table(headings, rows, whole=True)
        return 0


@dataclass(frozen=True)
class Reproduce:
    """Train an entry of the zoo again and compare the digest: paceline reproduce NAME [--steps N]

    The exit code is 0 if the digest is the same, otherwise 1. Any CPU will do.

    Example: paceline reproduce cifar10-resnet20 --steps 20 --data.dir data
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the entry."""
    steps: int = 0
    """Number of steps to train: that of the entry's row. 0 trains to the end."""
    data: DataFlags = field(default_factory=DataFlags)

    def __call__(self) -> int:
        from paceline.extras.zoo import find_row
        from paceline.kernels.library import ARITHMETIC

        row = find_row(self.name)
        if row.arithmetic != ARITHMETIC:
            raise UserError(
                f"{row.name} was trained with version {row.arithmetic} of the arithmetic, and this "
                f"is version {ARITHMETIC}: its digests cannot be compared; its weights can be used"
            )
        if self.steps not in (0, row.first_steps, row.step):
            raise UserError(
                f"steps is {self.steps}; {row.name} has digests after {row.first_steps} and "
                f"{row.step} steps"
            )
        steps = self.steps or row.step
        wanted = row.state_sha256 if steps == row.step else row.first_sha256
        result = train_first(row.experiment, row.kernels, steps % row.step, self.data.dir)
        found = result["state_sha256"]
        same = found == wanted
        outcome = "the same digest" if same else "a DIFFERENT digest"
        print(f"{row.name} after {steps:,} steps: {outcome}")
        print(f"zoo   {wanted}\nhere  {found}")
        return 0 if same else 1


def train_first(experiment: Experiment, kernels: str, stop_at: int, data_dir: str) -> Json:
    """Train an experiment up to a step, or with 0 to its end, in a temporary folder."""
    from paceline.api.training import train

    where = os.path.abspath(data_dir) if data_dir else experiment.data.dir
    with tempfile.TemporaryDirectory(prefix="paceline-reproduce-") as folder:
        settings: Json = {"run_dir": f"{folder}/run", "stop_at": stop_at, "data.dir": where}
        settings["kernels"] = "own" if kernels == "own" else "tensorflow"
        return vars(train(experiment, **settings))
