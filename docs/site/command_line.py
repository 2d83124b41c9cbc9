"""The reference of the command line, as Markdown, from the dataclasses of the commands."""

from __future__ import annotations

import argparse
import re
import warnings

import tyro

import paceline
from paceline.cli.commands import COMMANDS, load_command
from paceline.cli.parse import CONSTRUCTORS

HEAD = """# The command line

All commands with all their flags. `paceline COMMAND --help` prints the same. Every field of an
experiment is a flag of `paceline train`, so [the Python API](api.md) has the same names with
underscores. [Exit codes](versions.md#exit-codes) are the same for all commands.
"""


def command_line_page() -> str:
    """Return the whole page."""
    return "\n\n".join([HEAD, *map(command_section, COMMANDS), recipes_section()])


def recipes_section() -> str:
    """Return the recipes and what they train."""
    rows = [f"- **`{name}`** {_escaped(text)}" for name, text in paceline.recipes().items()]
    return "## Recipes\n\n`paceline train RECIPE` takes one of these names.\n\n" + "\n".join(rows)


def command_section(name: str) -> str:
    """Return a command: its description, its words and its flags."""
    parser = parser_of(name)
    usage, *paragraphs = (parser.description or "").split("\n\n")
    summary, _, call = usage.partition(": paceline ")
    parts = [f"## paceline {name}", f"{summary}.", f"```\npaceline {call or name}\n```"]
    for text in paragraphs:
        example = text.removeprefix("Example: ")
        parts.append(text if example == text else f"Example:\n\n```\n{example}\n```")
    for group in parser._action_groups:
        lines = [line_of(each) for each in group._group_actions if each.dest != "help"]
        if not lines:
            continue
        if group.description:
            flag = group._group_actions[0].option_strings[0].rpartition(".")[0]
            parts += [f"### {flag} ({name}) {{: #{name.replace(' ', '-')}{flag} }}"]
            parts += [group.description]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return tyro's parser of a command; if it takes a recipe, with the defaults of `shapes`."""
    command = load_command(name)
    of_recipe = getattr(command, "of_recipe", None)
    default = of_recipe("shapes") if of_recipe else tyro.MISSING_NONPROP
    with warnings.catch_warnings(), CONSTRUCTORS:
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro is pinned
        return tyro.extras.get_parser(command, prog=f"paceline {name}", default=default)


def line_of(action: argparse.Action) -> str:
    """Return a flag as an item of a list: its names, its values, its help and its default."""
    text, _, default = (action.help or "").rpartition(" (")
    names = ", ".join(action.option_strings) or str(action.metavar)
    values = str(action.metavar or "") if action.option_strings else ""
    values = re.sub(r"^\[(.+) \[\1 \.\.\.\]\]$", r"\1 ...", values)
    default = default.removesuffix(")").removeprefix("default: ")
    known = "" if default in ("", "''", "default:") else f" *({_shown(default)})*"
    return f"- **`{f'{names} {values}'.strip()}`** {_escaped(text)}{known}"


def _shown(default: str) -> str:
    return default if default == "required" else f"default `{default}`"


def _escaped(text: str) -> str:
    """Keep `<class>` and `*` in a help text from being Markdown, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*<_\[])", r"\\\1", p) for p in parts)
