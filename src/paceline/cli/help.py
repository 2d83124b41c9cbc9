"""The help: the list of commands, and the flags of the commands that take a recipe.

For these, `--help` shows the flags of `COMMON` with the recipe's values, `--help SECTION` all flags
of a section, such as optimizer, and `--help all` every flag. The texts are below the fields.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from shutil import get_terminal_size
from typing import Any, Literal, get_args, get_origin

from paceline.cli.commands import COMMANDS, load_command
from paceline.cli.parse import fields_of, texts_of
from paceline.errors import UserError, did_you_mean
from paceline.experiment.names import SHORT_NAMES

COMMON = {
    "Data": "data.dir data.image-size data.validation",
    "Model": "model.depth model.build model.init-from",
    "Training": "epochs global-batch-size schedule.rate schedule.name schedule.warmup "
    "optimizer.name optimizer.weight-decay evaluate-every seed",
    "Where": "workers replicas on devices",
    "Search": "over trials scheduler max-concurrent search-dir",
    "Run": "run-dir stop-at dry-run",
}
"""What `--help` shows, of the flags that a command has."""
COLUMN = 27


def list_commands(group: str, words: list[str]) -> int:
    """Print a line for each command of a group, or refuse a command that does not exist."""
    names = [each for each in COMMANDS if each.startswith(group)]
    if words and words[0] not in ("-h", "--help"):
        known = dict.fromkeys(each.removeprefix(group).split()[0] for each in names)
        given = f"{group} {words[0]}".strip()
        raise UserError(f"unknown command {given!r}; {did_you_mean(words[0], known)}")
    print("paceline trains ResNets, and any Keras image classifier.")
    print("The same experiment gives the same bits in every place.\n")
    for name in names:
        summary = load_command(name).__doc__.split(": paceline")[0]
        print(f"  {name:<{max(map(len, names))}}  {summary}")
    print("\n`paceline COMMAND --help` shows its flags. Begin with: paceline train")
    return 0


def show_help(command: Any, defaults: Any, words: list[str]) -> None:
    """Print the help of a command; `words` are those after --help."""
    flags, topic = dict(_flags(defaults)), words[0] if words else ""
    sections = dict.fromkeys(name.partition(".")[0] for name in flags if "." in name)
    if topic and topic not in (*sections, "all"):
        raise UserError(f"no help for {topic!r}; {did_you_mean(topic, [*sections, 'all'])}")
    for name in flags if topic else ():
        if topic == "all" or name.startswith(f"{topic}."):
            _print_flag(name, *flags[name])
    if topic:
        return
    text, _, example = inspect.cleandoc(command.__doc__).partition("\n\nExample")
    for paragraph in text.split("\n\n"):
        _print(" ".join(paragraph.split()))
    for title, names in COMMON.items():
        shown = [name for name in names.split() if name in flags]
        if shown:
            print(f"\n{title}")
        for name in shown:
            value, help_text, choices = flags[name]
            _print_flag(name, value, re.split(r"[.:;](?: |$)", help_text)[0], choices)
    short = [f"--{name} is --{SHORT_NAMES[name]}" for name in ("lr", "batch-size", "out")]
    print()
    _print(f"Short names: {', '.join(short)}.")
    _print(f"All {len(flags)} flags: --help all. A section: --help {', '.join(sections)}.")
    print(f"Example{example}")


def _flags(values: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Any, str, tuple[Any, ...]]]]:
    """Yield the name of every flag of a dataclass with its value there, its text and choices."""
    command: Any = type(values)
    texts = texts_of(command)
    for field, kind, is_unnamed, is_shown in fields_of(command):
        value, name = getattr(values, field), prefix + field.replace("_", "-")
        if is_dataclass(value):
            yield from _flags(value, prefix if is_unnamed else f"{name}.")
        elif is_shown:
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            yield name, (value, texts.get(field, ""), choices)


def _print_flag(name: str, value: Any, text: str, choices: tuple[Any, ...]) -> None:
    text = text.rstrip(".") + (f" ({', '.join(filter(None, choices))})" if choices else "")
    value = " ".join(map(str, value)) if isinstance(value, tuple) else value
    if value != "" and value is not False:
        text += f" [{value:g}]" if isinstance(value, float) else f" [{value}]"
    _print(text, f"  --{name}", COLUMN)


def _print(text: str, before: str = "", column: int = 0) -> None:
    lines = textwrap.wrap(text, min(100, get_terminal_size().columns) - column - 1)
    gap = "" if len(before) < column or not column else f"\n{' ' * column}"
    print(f"{before:<{column}}{gap}" + f"\n{' ' * column}".join(lines))
