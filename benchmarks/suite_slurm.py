"""Two tasks of `srun` against two processes of `--workers 2`, on a real Slurm of this machine."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import ContenderFailed
from benchmarks.images import cifar10_folder
from benchmarks.slurm_cluster import WHY_NOT, slurm_cluster
from benchmarks.suite_spark import Training, train
from benchmarks.suites import Settings
from benchmarks.summary import Figure, SuiteResult, quartiles

TRAININGS = 4
STEPS = 100


def measure(settings: Settings) -> SuiteResult:
    """Train alternately by `srun -N 2 -n 2` and by `--workers 2`."""
    if WHY_NOT:
        raise ContenderFailed(WHY_NOT)
    with (
        cifar10_folder() as (folder, note),
        tempfile.TemporaryDirectory(prefix="paceline-bench-") as parent,
        slurm_cluster(Path(parent, "slurm")) as cluster,
    ):
        local = partial(train, folder, steps=STEPS)
        srun = ("srun", "-N", "2", "-n", "2")
        slurm = partial(local, start_by=srun, environment=cluster.environment)
        pairs = [_pair(settings, Path(parent), number, slurm, local) for number in range(TRAININGS)]
    figures = [
        Figure(
            "images/s after the first step, srun of 2 tasks to --workers 2",
            quartiles(slurm.images_per_s / local.images_per_s for slurm, local in pairs),
            "x",
        ),
        Figure(
            "command to first step, --workers 2",
            quartiles(local.first_step_s for _, local in pairs),
            "s",
        ),
        Figure(
            "command to first step, srun's more",
            quartiles(slurm.first_step_s - local.first_step_s for slurm, local in pairs),
            "s",
        ),
    ]
    notes = [note, f"ResNet-20, {STEPS} steps of 128; two nodes of Slurm on this machine"]
    return SuiteResult("Slurm on this machine", figures, notes)


def _pair(
    settings: Settings,
    parent: Path,
    number: int,
    slurm: Callable[[Path], Training],
    local: Callable[[Path], Training],
) -> tuple[Training, Training]:
    """Return the training by srun and the one by --workers, of which either may be the first."""
    settings.tell(f"training {number + 1} of {TRAININGS}, by srun and by --workers")
    by_name = {"slurm": slurm, "local": local}
    order = sorted(by_name, reverse=bool(number % 2))
    done = {name: by_name[name](parent / f"{name}-{number}") for name in order}
    return done["slurm"], done["local"]
