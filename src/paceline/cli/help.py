"""The help of commands that take a recipe: one screen of the flags that people change, or the rest.

`--help` shows the flags of `COMMON` with the recipe's values, `--help SECTION` all flags of a
section, such as optimizer, and `--help all` every flag. The texts are below the fields.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from shutil import get_terminal_size
from typing import Any, Literal, NamedTuple, get_args, get_origin

from paceline.cli.parse import fields_of, texts_of
from paceline.errors import UserError, did_you_mean
from paceline.experiment.names import SHORT_NAMES

COMMON = {
    "Data": ("data.dir", "data.image-size", "data.validation"),
    "Model": ("model.depth", "model.build", "model.init-from"),
    "Training": (
        *("epochs", "global-batch-size", "schedule.rate", "schedule.name", "schedule.warmup"),
        *("optimizer.name", "optimizer.weight-decay", "evaluate-every", "seed"),
    ),
    "Where": ("workers", "replicas", "on", "devices"),
    "Search": ("over", "trials", "method", "metric", "search-dir"),
    "Run": ("run-dir", "stop-at", "dry-run"),
}
"""What `--help` shows, of the flags that a command has."""
WIDTH, COLUMN = 100, 27


class Flag(NamedTuple):
    """A flag with the recipe's value, and its help."""

    name: str
    value: Any
    text: str
    choices: tuple[Any, ...]


def show_help(command: Any, program: str, defaults: Any, words: list[str]) -> None:
    """Print the help of a command; `words` are those after --help."""
    flags, topic = list(_flags(defaults)), words[0] if words else ""
    sections = dict.fromkeys(each.name.partition(".")[0] for each in flags if "." in each.name)
    if topic and topic not in (*sections, "all"):
        raise UserError(f"no help for {topic!r}; {did_you_mean(topic, [*sections, 'all'])}")
    print(inspect.cleandoc(command.__doc__).split("\n\nExample")[0] if not topic else program)
    if topic:
        chosen = [each for each in flags if topic == "all" or each.name.startswith(f"{topic}.")]
        for each in chosen:
            _print_flag(each, each.text)
        return
    for title, names in COMMON.items():
        if chosen := [each for each in flags if each.name in names]:
            print(f"\n{title}")
            for each in sorted(chosen, key=lambda flag: names.index(flag.name)):
                _print_flag(each, re.split(r"[.:;](?: |$)", each.text)[0])
    short = [f"--{name} is --{SHORT_NAMES[name]}" for name in ("lr", "batch-size", "out")]
    print()
    _print(f"Short names: {', '.join(short)}.")
    _print(f"All {len(flags)} flags: --help all. A section: --help {', '.join(sections)}.")
    print(command.__doc__[command.__doc__.index("Example") :].rstrip())


def _flags(values: Any, prefix: str = "") -> Iterator[Flag]:
    """Yield every flag of a dataclass with the value that it has there."""
    texts = texts_of(type(values))
    for field, kind, is_unnamed, is_shown in fields_of(type(values)):
        value, name = getattr(values, field), prefix + field.replace("_", "-")
        if is_dataclass(value):
            yield from _flags(value, prefix if is_unnamed else f"{name}.")
        elif is_shown:
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            yield Flag(name, value, texts.get(field, ""), choices)


def _print_flag(flag: Flag, text: str) -> None:
    value = " ".join(map(str, flag.value)) if isinstance(flag.value, tuple) else flag.value
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    now = "" if value == "" or value is False else f" [{shown}]"
    choices = f" ({', '.join(filter(None, flag.choices))})" if flag.choices else ""
    name = f"  --{flag.name}"
    gap = name.ljust(COLUMN) if len(name) < COLUMN else f"{name}\n{' ' * COLUMN}"
    _print(f"{text.rstrip('.')}{choices}{now}", gap)


def _print(text: str, first: str = "") -> None:
    width = min(WIDTH, get_terminal_size().columns) - 1
    lines = textwrap.wrap(text, width - (COLUMN if first else 0), break_on_hyphens=False)
    print(first + f"\n{' ' * COLUMN if first else ''}".join(lines))
