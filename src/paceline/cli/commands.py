"""The command line: flags -> experiment, place and run -> train. It imports no TensorFlow; a worker process does the work."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import io
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from paceline.cli import data, machine, report, results
from paceline.cli.completion import flags_of
from paceline.config.experiment import Experiment
from paceline.config.job import Job, Place, Run
from paceline.errors import Ended, UserError, did_you_mean


def main(arguments: Sequence[str] | None = None) -> int:
    """The program: 0 for done, 2 for what a person can put right, 1 for a failure, 130 or 143 for an interruption."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(_help())
            return 0
        if arguments[0] == "--version":
            from importlib.metadata import version

            print(f"paceline {version('paceline')}")
            return 0
        if arguments[0] not in COMMANDS:
            raise UserError(
                f"unknown command {arguments[0]!r}; {did_you_mean(arguments[0], list(COMMANDS))}"
            )
        return COMMANDS[arguments[0]](arguments[1:]) or 0
    except UserError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 2
    except Ended as end:
        print(f"paceline: {end}", file=sys.stderr)
        return end.exit_code
    except KeyboardInterrupt:  # what runs in workers has its own way to stop
        return 130
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # what is left in the buffer goes nowhere, silently
        return 1


def _help() -> str:
    lines = [
        "paceline trains ResNets, and any Keras image classifier, with the same bits in every place.",
        "",
    ]
    width = max(map(len, COMMANDS))
    for name, command in COMMANDS.items():
        lines.append(f"  paceline {name:<{width}}  {(command.__doc__ or '').splitlines()[0]}")
    return "\n".join(
        [
            *lines,
            "",
            "`paceline COMMAND --help` shows the flags of a command. Begin with: paceline train",
        ]
    )


@dataclass(frozen=True)
class _Train:
    """Train a recipe, or go on with its unfinished run: paceline train [RECIPE] [flags]. Without a name the recipe is `shapes`; the
    defaults below are those of the recipe.

    Example: paceline train cifar10-fast --data.dir data --workers 2"""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    place: Annotated[Place, tyro.conf.arg(name="")]
    run: Annotated[Run, tyro.conf.arg(name="")]
    dry_run: bool = False
    """Print every derived number and the table of layers, and stop."""
    json: bool = False
    """Print the result as one line of JSON, too."""


def train(arguments: list[str]) -> int:
    """Train a recipe, or go on with its unfinished run: paceline train [RECIPE] [flags]"""
    from paceline.config.recipes import get_recipe

    recipe = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "shapes"
    flags = parse(
        _Train, f"paceline train {recipe}", arguments, _Train(get_recipe(recipe), Place(), Run())
    )
    from paceline.run_folder.folder import default_path

    run = (
        flags.run
        if flags.run.run_dir
        else dataclasses.replace(flags.run, run_dir=str(default_path(recipe, flags.experiment)))
    )
    job = Job(flags.experiment, flags.place, run, dry_run=flags.dry_run)
    return _launch(job, flags.json)


def parse(kind: Any, program: str, arguments: list[str], default: Any) -> Any:
    """Flags by tyro; whatever it refuses becomes one line."""
    refused = io.StringIO()
    try:
        with contextlib.redirect_stderr(refused):
            flags, unknown = tyro.cli(
                kind,
                prog=program,
                args=_joined(arguments),
                default=default,
                return_unknown_args=True,
            )
    except SystemExit as end:
        if end.code == 0:
            raise
        raise UserError(f"{_refusal(refused.getvalue())} (see {program} --help)") from None
    if unknown:
        raise UserError(
            f"{_unknown(unknown[0], list(flags_of(kind)), train=kind is _Train)} (see {program} --help)"
        )
    return flags


def _joined(arguments: list[str], flag: str = "--spark.conf") -> list[str]:
    """`--spark.conf A --spark.conf B`, as spark-submit has it, is `--spark.conf A B`; tyro would forget A."""
    values, others, takes = [], [], False
    for word in arguments:
        takes = word == flag or (takes and not word.startswith("--"))
        if not takes:
            others.append(word)
        elif word != flag:
            values.append(word)
    return [*others, flag, *values] if values else arguments


def _refusal(explanation: str) -> str:
    """What tyro says first in its frame; the most frequent cases in our own words."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", explanation)
    rows = [row.strip("│ ") for row in text.splitlines()[1:]]
    first = " ".join(
        itertools.takewhile(lambda row: row and not row.startswith(("─", "╰")), rows)
    ).rstrip(".")
    if wrong := re.match(r"Error parsing (\S+): .*(?:int\(\).*|float): ('.*')$", first):
        return f"{wrong[1]} is {wrong[2]}; it must be a {'whole ' * ('int()' in first)}number"
    if wrong := re.match(
        r"invalid choice ('.*') for argument '(\S+)'. Expected one of \((.*?),?\)$", first
    ):
        return f"{wrong[2]} is {wrong[1]}; it must be one of {wrong[3]}"
    if wrong := re.match(r"Missing value for argument '(\S+)'. Expected (\d+) values$", first):
        return f"{wrong[1]} needs {'a value' if wrong[2] == '1' else f'{wrong[2]} values'}"
    if first.startswith("Missing from "):
        names = re.findall(r"(?:: |\(required\) )(--[a-z.-]+|[A-Z]+) ", first)
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
    return first


def _unknown(word: str, known: list[str], train: bool) -> str:
    """The nearest flag by its last part, or else by its whole name."""
    if not word.startswith("-"):
        return f"cannot understand {word!r}; {'the recipe comes first and ' * train}every other value after its flag"
    name = word.lstrip("-").split("=")[0]
    near = [flag for flag in known if flag.endswith(f".{name}")] or difflib.get_close_matches(
        name, known, n=1
    )
    near = near or [
        flag for flag in known if re.split(r"[.-]", flag)[-1] == re.split(r"[.-]", name)[-1]
    ]
    return f"unknown flag --{name}" + (f"; did you mean --{near[0]}?" if near else "")


def _launch(job: Job, as_json: bool) -> int:
    from paceline.places.failures import Interrupted

    try:
        result = _describe(job) if job.dry_run else _train(job)
    except Interrupted as signal:
        print(f"{signal}; the same command goes on from here", file=sys.stderr)
        return signal.exit_code
    if as_json:
        print(json.dumps(result))
    return 0


def _train(job: Job) -> dict[str, Any]:
    from paceline.cli.progress import Progress
    from paceline.places import launch

    with Progress() as progress:
        return launch(job, progress.handle)


def _describe(job: Job) -> dict[str, Any]:
    """A dry run: its folder is gone afterwards, unless it failed and there is a log to read."""
    from paceline.places import launch
    from paceline.places.failures import WorkerFailed

    folder = tempfile.mkdtemp(prefix="paceline-dry-run-")
    try:
        result = launch(
            dataclasses.replace(job, run=dataclasses.replace(job.run, run_dir=folder)),
            lambda message: None,
        )
    except WorkerFailed:
        raise
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)
    print(result["description"])
    return {}


def recipes(arguments: list[str]) -> None:
    """List the recipes: paceline recipes"""
    if arguments[:1] in (["-h"], ["--help"]):
        print(
            "usage: paceline recipes\n\nList the recipes, which `paceline train RECIPE` trains.\n\nExample: paceline recipes"
        )
        return
    if arguments:
        raise UserError(
            f"cannot understand `paceline recipes {' '.join(arguments)}`; use: paceline recipes"
        )
    from rich.console import Console
    from rich.table import Table

    from paceline.config.recipes import RECIPES

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("recipe", "what it is"):
        table.add_column(heading)
    for name, recipe in RECIPES.items():
        table.add_row(
            name, inspect.cleandoc(recipe.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        )
    Console().print(table)


def _names_of_recipes() -> list[str]:
    from paceline.config.recipes import RECIPES

    return list(RECIPES)


def spark_script(arguments: list[str]) -> None:
    """Print the path of the script for spark-submit; --zip FILE writes this package for --py-files."""
    from pathlib import Path

    if arguments[:1] in (["-h"], ["--help"]):
        print(
            f"{spark_script.__doc__}\n\nExample: spark-submit --master URL $(paceline spark-script) train smoke --workers 2"
        )
        return

    from paceline.places.spark.session import write_package

    if arguments[:1] == ["--zip"] and len(arguments) == 2:
        print(write_package(Path(arguments[1])))
    elif arguments:
        raise UserError(
            f"cannot understand `paceline spark-script {' '.join(arguments)}`; use: paceline spark-script [--zip FILE]"
        )
    else:
        print(Path(__file__).parents[1] / "spark_script.py")


COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "train": train,
    "eval": results.evaluate,
    "predict": results.predict,
    "export": results.export,
    "report": report.report,
    "runs": machine.runs,
    "tensorboard": machine.tensorboard,
    "data": data.data,
    "recipes": recipes,
    "bench": machine.bench,
    "doctor": machine.doctor,
    "completion": machine.completion,
    "spark-script": spark_script,
}
FLAGS: dict[str, Any] = {
    "train": _Train,
    "eval": results.Eval,
    "predict": results.Predict,
    "export": results.Export,
    "report": report.Report,
    "runs": machine.Runs,
    "tensorboard": machine.TensorBoard,
    "recipes": None,
    "bench": machine.Bench,
    "doctor": machine.Doctor,
    "completion": machine.Completion,
    "spark-script": None,
    **{f"data {name}": kind for name, kind in data.FLAGS.items()},
}
"""The flags of each command, for completion."""
FIRST_WORDS: dict[str, Callable[[], list[str]]] = {
    "train": _names_of_recipes,
    "bench": _names_of_recipes,
    "completion": lambda: ["bash", "zsh", "fish"],
    "data fetch": lambda: ["cifar10", "cifar100"],
    **dict.fromkeys(("eval", "predict", "export", "report", "tensorboard"), machine.names_of_runs),
}
"""What the words of a command that are no flags can be, where it is no file."""
