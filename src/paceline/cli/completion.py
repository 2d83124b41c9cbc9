"""`paceline completion`: a script with which a shell completes commands and flags."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

import tyro
from tyro.extras import SubcommandApp

from paceline.cli.commands import COMMANDS, load_command
from paceline.cli.parse import CONSTRUCTORS


@dataclass(frozen=True)
class Completion:
    """Print a script that lets a shell complete commands: paceline completion bash|zsh|fish

    The shell then completes commands, flags and their values.

    Example: eval "$(paceline completion bash)"; permanently: paceline completion bash >> ~/.bashrc
    """

    shell: Annotated[
        Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")
    ]
    """The shell: bash, zsh or fish."""

    def __call__(self) -> int:
        app, groups = SubcommandApp(), dict[str, SubcommandApp]()
        for name in COMMANDS:
            group, _, verb = name.rpartition(" ")
            if group and group not in groups:
                groups[group] = SubcommandApp()
                app.command(groups[group], name=group)
            if f"{name} add" not in COMMANDS:  # tyro completes either `zoo` or `zoo add`
                target = groups[group] if group else app
                target.command(_without_recipe(load_command(name)), name=verb)
        with CONSTRUCTORS:
            app.cli(prog="paceline", args=["--tyro-print-completion", self.shell])
        return 0


def _without_recipe(command: Any) -> Any:
    """Return a command without the recipe that gives its flags their defaults."""
    if not hasattr(command, "of_recipe"):
        return command
    hints = get_type_hints(command, include_extras=True)
    flags = [(name, hint) for name, hint in hints.items() if name != "recipe"]
    return dataclasses.make_dataclass(command.__name__, flags)
