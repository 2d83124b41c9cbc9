"""The program `paceline`: the table of commands, and the exit codes.

A command is a frozen dataclass. Its fields are the flags, its docstring is the help, and calling it
does the work. It imports no TensorFlow: a worker process does what needs TensorFlow.
"""

import errno
import io
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from paceline.errors import Ended, UserError, public
from paceline.storage.files import fill_standard_streams, silence, to_log

COMMANDS = {
    "train": "train:Train",
    "search": "search:Search",
    "eval": "results:Eval",
    "predict": "results:Predict",
    "export": "results:Export",
    "report": "runs:WriteReport",
    "runs": "runs:ListRuns",
    "zoo": "runs:ListZoo",
    "zoo fetch": "runs:FetchEntry",
    "verify": "proof:Verify",
    "diff": "proof:Diff",
    "reproduce": "proof:Reproduce",
    "data fetch": "data:Fetch",
    "data info": "data:Info",
    "data convert": "data:Convert",
    "data check": "data:Check",
    "recipes": "runs:Recipes",
    "doctor": "runs:Doctor",
    "spark-script": "runs:SparkScript",
}
"""Words of a command -> its module in this folder and its class."""


def main(arguments: Sequence[str] | None = None, begin: Callable[[], object] = lambda: None) -> int:
    """Run the program and return its exit code. It calls `begin` when all is imported and read.

    0: done. 1: a failure. 2: an error that a person can correct. 129 and above: a signal.
    """
    fill_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files need not be UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments), begin)
    except UserError as error:
        to_log(f"paceline: {public(str(error))}")
        return 2
    except Ended as end:
        to_log(f"paceline: {public(str(end))}")
        return end.exit_code
    except KeyboardInterrupt:  # work in worker processes handles interruptions itself
        return 130
    except OSError as error:
        if error.filename or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            raise
        silence(sys.stdout)
        if error.errno != errno.EPIPE:  # else nobody wants to read more
            to_log(f"paceline: cannot write to standard output: {error.strerror}")
        return 1


def _run(arguments: list[str], begin: Callable[[], object]) -> int:
    from paceline.cli.parse import parse  # a second of imports, which a Ctrl-C may interrupt

    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"paceline {version('paceline')}")
        return 0
    name, arguments = split_command(arguments)
    if name not in COMMANDS:
        from paceline.cli.help import list_commands

        return list_commands(name, arguments)
    command, program, default = load_command(name), f"paceline {name}", None
    if hasattr(command, "of_recipe"):  # the first word is a recipe, with the defaults of flags
        recipe = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "shapes"
        program, default = f"{program} {recipe}", command.of_recipe(recipe, arguments)
        for word in {"-h", "--help"}.intersection(arguments):
            from paceline.cli.help import show_help

            show_help(command, default, arguments[arguments.index(word) + 1 :])
            return 0
    run = parse(command, program, arguments, default)
    begin()
    code: int = run()
    return code


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
