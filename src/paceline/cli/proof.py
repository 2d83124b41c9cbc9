"""`paceline verify`, `diff` and `reproduce`: whether a run is what it says, and where two part."""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import tyro

from paceline.cli.parse import RunName, RunNames
from paceline.cli.results import DataFlags, listening
from paceline.cli.tables import print_table
from paceline.errors import UserError, printable
from paceline.experiment.fields import Range, check_fields


@dataclass(frozen=True, kw_only=True)
class _ReplayFlags:
    workers: Annotated[int, Range(1)] = 1
    """Number of processes that train again. It does not change the bits."""
    data: DataFlags = field(default_factory=DataFlags)
    trust_code: bool = False
    """Run the run's own Python code (model.build, data.build). Use only for runs you trust."""
    json: bool = False
    """Print one line of JSON."""


@dataclass(frozen=True, kw_only=True)
class Verify(_ReplayFlags):
    """Train random pieces of a run again and compare all digests: paceline verify RUN

    The exit code is 0 if all is equal, 1 if something differs, 2 if the run cannot be checked. An
    interrupted check continues where it stopped.

    Example: paceline verify runs/cifar10-fast-1a2b3c4d --share 0.02 --workers 2
    """

    run: RunName
    """Folder of the run, its name in runs/, or zoo:NAME."""
    share: Annotated[float, Range(0, 1, excludes_lowest=True)] = 0.02
    """Share of the steps to train again. Each piece begins at a checkpoint."""
    all: bool = False
    """Train everything again, from the first step to the last."""
    seed: int = 0
    """Chooses the pieces."""
    follow: bool = False
    """Check a run while it trains, until it ends. The run may begin later than this command."""

    def __call__(self) -> int:
        from paceline.extras.proof.follow import follow
        from paceline.extras.proof.replay import How
        from paceline.extras.proof.verify import verify

        check_fields(self)
        how = How(self.workers, self.data.dir, self.trust_code)
        share = 1.0 if self.all else self.share
        check = follow if self.follow and not self.run.startswith("zoo:") else verify
        with listening("training again") as listen:
            found = check(self.run, share, how, self.seed, listen)
        if self.json:
            print(json.dumps(vars(found) | {"equal": not found.finding}))
        else:
            print(found, *filter(None, (printable(found.finding), found.note)), sep="\n")
        return 1 if found.finding else 0


@dataclass(frozen=True, kw_only=True)
class Diff(_ReplayFlags):
    """Compare two runs, and find the step where they diverge: paceline diff RUN RUN

    The exit code is 0 if all common digests are equal, 1 if they differ, 2 if there are none.

    Example: paceline diff runs/one s3://bucket/runs/two --replay
    """

    runs: RunNames
    """Two run folders, names of runs in runs/, URLs or zoo:NAME."""
    replay: bool = False
    """Train both again from their last common checkpoint to the step where they diverge, and list
    the tensors that differ."""

    def __call__(self) -> int:
        from paceline.extras.proof.compare import compare, replay_both
        from paceline.extras.proof.replay import How
        from paceline.run_folder.finding import existing_run

        check_fields(self)
        if len(self.runs) != 2:
            raise UserError(f"{len(self.runs)} runs were given; diff compares two")
        runs = [existing_run(name, checkpoints=self.replay) for name in self.runs]
        found = compare(*runs)
        if self.replay:
            how = How(self.workers, self.data.dir, self.trust_code)
            with listening("training again") as listen:
                found = replace(found, replayed=replay_both(runs, found, how, listen))
        if self.json:
            equal = found.difference is None and found.steps > 0
            print(json.dumps(asdict(found) | {"summary": str(found), "equal": equal}))
        else:
            print_table(("", *(f"{run.where}<" for run in runs)), found.rows, whole=True)
            print(found, *map(printable, (*found.reasons, *found.replayed)), sep="\n")
        return 1 if found.difference else 0 if found.steps else 2


@dataclass(frozen=True)
class Reproduce:
    """Train an entry of the zoo again and compare the digest: paceline reproduce NAME [--steps N]

    This is the same as `paceline verify zoo:NAME`, on any CPU. The exit code is 0 if the digest is
    the same, 1 if it differs, 2 if it cannot be compared.

    Example: paceline reproduce cifar10-resnet20 --steps 20 --data.dir data
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the entry."""
    steps: int = 0
    """Number of steps to train: 0 trains to the end. An entry has a digest of its first steps."""
    data: DataFlags = field(default_factory=DataFlags)

    def __call__(self) -> int:
        from paceline.extras.zoo import PREFIX, find_row

        row = find_row(self.name)
        if self.steps not in (0, row.first_steps, row.step):
            raise UserError(
                f"steps is {self.steps}; {row.name} has digests after {row.first_steps} and "
                f"{row.step} steps"
            )
        share = (self.steps or row.step) / row.step
        return Verify(run=f"{PREFIX}{row.name}", share=share, data=self.data)()
