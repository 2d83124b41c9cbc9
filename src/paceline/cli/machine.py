"""Looking around: `paceline runs`, `tensorboard`, `doctor`, `bench` and `completion`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import tyro

from paceline.cli.results import DataFlags
from paceline.errors import UserError
from paceline.machine.bench import Kind, measure_recipe


@dataclass(frozen=True)
class Runs:
    """A table of the runs in a folder; of unfinished ones, the command that goes on with them.

    Example: paceline runs --sort accuracy"""

    dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = "runs"
    """Folder of run folders."""
    sort: Literal["name", "state", "step", "accuracy", "loss", "speed", "changed"] = "changed"
    """Column to sort by; the newest, best or fastest come first."""


def runs(arguments: list[str]) -> int:
    """List runs and how to resume those that are unfinished: paceline runs [DIR] [--sort COLUMN]"""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from paceline.cli.commands import parse
    from paceline.run_folder.listing import COLUMNS, table_of_runs

    flags = parse(Runs, "paceline runs", arguments, Runs())
    if not Path(flags.dir).is_dir():
        raise UserError(
            f"there is no folder {flags.dir}; `paceline train` makes runs, or give another DIR"
        )
    rows = table_of_runs(Path(flags.dir), flags.sort)
    if not rows:
        raise UserError(f"there are no runs in {flags.dir}; `paceline train` makes one")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in COLUMNS:
        table.add_column(
            {"speed": "images/s"}.get(column, column),
            justify="left" if column in ("name", "state") else "right",
        )
    for row in rows:
        numbers = [
            _shown(row.step, ",.0f"),
            _shown(row.accuracy, ".4f"),
            _shown(row.loss, ".4f"),
            _shown(row.speed, ",.0f"),
        ]
        table.add_row(
            Text(row.name),
            row.state,
            *numbers,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(row.changed)),
        )
    Console().print(table)
    for row in rows:
        if row.note:
            print(f"{'resume' if row.state == 'unfinished' else row.state} {row.name}: {row.note}")
    return 0


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


@dataclass(frozen=True)
class TensorBoard:
    """Start TensorBoard on one or several runs; Ctrl-C ends it.

    Example: paceline tensorboard runs/shapes-6d2c1f04 runs/shapes-77aa01bc --port 6007"""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of runs, or their names in runs/."""
    port: int = 0
    """0 takes 6006, or the next that is free."""
    host: str = "localhost"
    """Who may look: localhost is this machine only, 0.0.0.0 everyone."""


def tensorboard(arguments: list[str]) -> int:
    """Start TensorBoard on runs: paceline tensorboard RUN ..."""
    from paceline.cli.commands import parse
    from paceline.run_folder.folder import existing_run

    flags = parse(TensorBoard, "paceline tensorboard", arguments, TensorBoard(tyro.MISSING))
    if not flags.runs:
        raise UserError(
            "RUN is missing; give folders of runs, or their names in runs/ (see paceline runs)"
        )
    folders = [existing_run(run).path for run in flags.runs]
    with tempfile.TemporaryDirectory(prefix="paceline-tensorboard-") as together:
        names: list[str] = []
        for folder in folders:  # a link for each: TensorBoard takes one folder
            names.append(folder.name if folder.name not in names else f"{folder.name}-{len(names)}")
            Path(together, names[-1]).symlink_to((folder / "events").resolve())
        where = [
            "--logdir",
            together,
            "--host",
            flags.host,
            *(["--port", str(flags.port)] if flags.port else []),
        ]
        # It prints its address itself. In a session of its own, so that a Ctrl-C reaches it once, through us.
        signal.signal(
            signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
        )  # it must not stay behind
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *where], start_new_session=True
        )
        try:
            return 2 if process.wait() else 0
        except KeyboardInterrupt:
            return 130
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # its data server, too, where they did not end by themselves


@dataclass(frozen=True)
class Doctor:
    """Look at this machine: each line is good, slow or broken, with what to do; absent is what is not installed and only some need.

    Example: paceline doctor --run-dir /mnt/shared/runs"""

    run_dir: str = "runs"
    """Where runs will be written."""
    ray_address: str = ""
    """A Ray cluster to reach; empty is RAY_ADDRESS."""
    spark_master: str = ""
    """A Spark master to reach, as spark://HOST:PORT."""


def doctor(arguments: list[str]) -> int:
    """Say what is good, slow or broken on this machine: paceline doctor"""
    from rich.console import Console
    from rich.text import Text

    from paceline.cli.commands import parse
    from paceline.machine.doctor import examine_machine

    flags = parse(Doctor, "paceline doctor", arguments, Doctor())
    console, broken = Console(), False
    styles = {"good": "green", "slow": "yellow", "broken": "red", "absent": "dim"}
    for finding in examine_machine(flags.run_dir, flags.ray_address, flags.spark_master):
        broken = broken or finding.state == "broken"
        console.print(
            Text(f"{finding.state:<7}", styles[finding.state]),
            Text(f"{finding.what}: {finding.text}"),
            soft_wrap=True,
        )
    return 1 if broken else 0


@dataclass(frozen=True)
class Bench:
    """Measure the images per second of recipes on this machine, place by place, and say what a full run would take. Recipes on CIFAR
    train on drawn pictures of the same shape where no data are given.

    Example: paceline bench cifar10-fast --seconds 20 --on local ray"""

    recipes: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE")] = ()
    """Without any: shapes, cifar10-fast and cifar10-resnet56."""
    data: DataFlags = field(default_factory=DataFlags)
    seconds: float = 10.0
    """How long to measure each, after it was compiled."""
    on: tuple[Kind, ...] = ("local",)
    """Places: processes of this command, these and a parameter server, Ray and Spark started here."""
    workers: tuple[int, ...] = (1, 2)
    """Numbers of workers."""


def bench(arguments: list[str]) -> int:
    """Measure recipes on this machine: paceline bench [RECIPE ...]"""
    from paceline.cli.commands import parse
    from paceline.config.recipes import get_recipe

    flags = parse(Bench, "paceline bench", arguments, Bench())
    if flags.seconds <= 0 or not flags.workers:
        raise UserError(
            f"seconds is {flags.seconds} and workers {flags.workers}; seconds are above 0, workers one number or more"
        )
    names = flags.recipes or ("shapes", "cifar10-fast", "cifar10-resnet56")
    for name in names:
        get_recipe(name)  # a wrong name is told before anything is measured
    for name in names:
        for kind, workers in product(flags.on, flags.workers):
            measured = measure_recipe(
                name, get_recipe(name), kind, workers, flags.seconds, flags.data.dir
            )
            print(measured.line(), flush=True)
    return 0


@dataclass(frozen=True)
class Completion:
    """Print what makes a shell complete commands, recipes, runs and flags.

    Example: eval "$(paceline completion bash)"; to keep it: paceline completion bash >> ~/.bashrc"""

    shell: Annotated[
        Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")
    ]
    """bash, zsh or fish."""


def completion(arguments: list[str]) -> int:
    """Print what makes a shell complete commands: paceline completion bash|zsh|fish"""
    from paceline.cli.completion import SHELLS, candidates

    if arguments[:1] == ["words"]:  # asked by the shell
        from paceline.cli.commands import FIRST_WORDS, FLAGS

        print("\n".join(candidates(arguments[1:], FLAGS, FIRST_WORDS)))
        return 0
    from paceline.cli.commands import parse

    print(
        SHELLS[parse(Completion, "paceline completion", arguments, Completion(tyro.MISSING)).shell],
        end="",
    )
    return 0


def names_of_runs() -> list[str]:
    from paceline.run_folder.folder import all_runs

    return [str(run.path) for run in all_runs()]
