"""The program `paceline`: the table of commands, its help, and the exit codes.

A command is a frozen dataclass. Its fields are the flags, its docstring is the help, and calling it
does the work. It imports no TensorFlow: a worker process does what needs TensorFlow.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

from paceline.cli.parse import parse
from paceline.errors import Ended, UserError, did_you_mean

COMMANDS = {
    "train": "train:Train",
    "search": "search:Search",
    "eval": "results:Eval",
    "predict": "results:Predict",
    "export": "results:Export",
    "report": "runs:WriteReport",
    "runs": "runs:ListRuns",
    "zoo": "zoo:ListZoo",
    "zoo add": "zoo:AddToZoo",
    "zoo fetch": "zoo:FetchFromZoo",
    "reproduce": "zoo:Reproduce",
    "tensorboard": "runs:TensorBoard",
    "data fetch": "data:Fetch",
    "data info": "data:Info",
    "data convert": "data:Convert",
    "data check": "data:Check",
    "recipes": "train:Recipes",
    "bench": "machine:Bench",
    "doctor": "machine:Doctor",
    "completion": "completion:Completion",
    "spark-script": "train:SparkScript",
}
"""Words of a command -> its module in this folder and its class."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    0: done. 1: a failure. 2: an error that a person can correct. 130 or 143: an interruption.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files need not be UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        print(f"paceline: {_on_one_line(str(error))}", file=sys.stderr)
        return 2
    except Ended as end:
        print(f"paceline: {end}", file=sys.stderr)
        return end.exit_code
    except KeyboardInterrupt:  # work in worker processes handles interruptions itself
        return 130
    except BrokenPipeError:
        # Python flushes the buffer at exit; without a reader that would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"paceline {version('paceline')}")
        return 0
    name, arguments = split_command(arguments)
    if name not in COMMANDS:
        known = [each for each in COMMANDS if each.startswith(name)]
        if known and (not arguments or arguments[0] in ("-h", "--help")):
            print(_help(known))
            return 0
        return _refuse(name, arguments)
    command, program, default = load_command(name), f"paceline {name}", None
    if hasattr(command, "of_recipe"):  # the first word is a recipe, with the defaults of flags
        recipe = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "shapes"
        program, default = f"{program} {recipe}", command.of_recipe(recipe)
    code: int = parse(command, program, arguments, default)()
    return code


def _on_one_line(text: str) -> str:
    """Return a text with escapes for line breaks and control characters of names that it quotes."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def split_command(words: list[str]) -> tuple[str, list[str]]:
    """Return the leading words that name a command or a group of commands, and the others."""
    for count in (2, 1):
        name = " ".join(words[:count])
        if len(words) >= count and any(f"{each} ".startswith(f"{name} ") for each in COMMANDS):
            return name, words[count:]
    return "", words


def load_command(name: str) -> Any:
    """Import and return the class of a command."""
    module, kind = COMMANDS[name].split(":")
    return getattr(import_module(f"paceline.cli.{module}"), kind)


def _refuse(group: str, arguments: list[str]) -> int:
    given = f"{group} {arguments[0]}".strip()
    words = {each.removeprefix(group).split()[0]: None for each in COMMANDS if group in each}
    raise UserError(f"unknown command {given!r}; {did_you_mean(arguments[0], list(words))}")


def _help(names: Sequence[str]) -> str:
    """Return a line for each command: the first line of its docstring."""
    width = max(map(len, names))
    summaries = (load_command(name).__doc__.splitlines()[0] for name in names)
    lines = [f"  paceline {n:<{width}}  {text}" for n, text in zip(names, summaries, strict=True)]
    return "\n".join(
        [
            "paceline trains ResNets, and any Keras image classifier. "
            "The same experiment gives the same bits in every place.",
            "",
            *lines,
            "",
            "`paceline COMMAND --help` shows the flags of a command. Begin with: paceline train",
        ]
    )
