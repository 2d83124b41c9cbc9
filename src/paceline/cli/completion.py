"""`paceline completion`, and the words that can be where the cursor is.

The shell asks `paceline completion words ...` each time. The script that tyro writes is fixed when
it is written, so it cannot complete the names of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from paceline.cli.commands import COMMANDS, load_command
from paceline.cli.parse import first_word, flags_of

SHELLS = {
    "bash": r"""_paceline() {
    local IFS=$'\n'
    COMPREPLY=($(paceline completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _paceline paceline
""",
    "zsh": r"""#compdef paceline
_paceline() {
    local -a found
    found=(${(f)"$(paceline completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _paceline paceline
""",
    "fish": "complete -c paceline -a '(paceline completion words "
    "(commandline -opc)[2..] (commandline -ct) 2>/dev/null)'\n",
}

TAKE_RUNS = ("--model.init-from", "--run-dir")
"""Flags whose value is a run."""
TAKE_ONE_RUN = ("predict", "export")
"""Commands that take names of files after the run."""


@dataclass(frozen=True)
class Completion:
    """Print a script that lets a shell complete commands: paceline completion bash|zsh|fish

    The shell then completes commands, recipes, runs, flags and their values.

    Example: eval "$(paceline completion bash)"; permanently: paceline completion bash >> ~/.bashrc
    """

    shell: Annotated[
        Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")
    ]
    """The shell: bash, zsh or fish."""

    def __call__(self) -> int:
        print(SHELLS[self.shell], end="")
        return 0


def candidates(words: list[str]) -> list[str]:
    """Return what can replace the last of `words`, which follow the name of the program.

    An empty list means the name of a file.
    """
    *before, word = words or [""]
    return [each for each in _all_candidates(before, word) if each.startswith(word)]


def _all_candidates(before: list[str], word: str) -> Sequence[str]:
    name = next((n for n in COMMANDS if before[: len(n.split())] == n.split()), None)
    if name is None:
        depth = len(before)
        names = [each.split() for each in COMMANDS]
        return sorted({each[depth] for each in names if each[:depth] == before and each[depth:]})
    command = load_command(name)
    flags = flags_of(command)
    if before[-1].startswith("--") and (values := flags.get(before[-1].lstrip("-"))):
        named = [value for value in values if value]
        return named or _known("RUN" if before[-1] in TAKE_RUNS else "", word)
    if word.startswith("-"):
        return [f"--{flag}" for flag in ["help", *flags]]
    metavar, values = first_word(command)
    if metavar == "RUN" and name in TAKE_ONE_RUN and before[len(name.split()) :]:
        return ()  # the run is there already: now the names of files
    return values or _known(metavar, word)


def _known(metavar: str, word: str) -> Sequence[str]:
    """Return the names that exist of what `metavar` stands for; of runs also their paths."""
    if metavar == "RECIPE":
        from paceline.experiment.recipes.table import RECIPES

        return list(RECIPES)
    if metavar == "RUN":
        from paceline.runs.finding import all_runs

        paths = [run.path for run in all_runs()]
        names = [path.name for path in paths]
        return [*names, *map(str, paths)] if word else names
    return ()
