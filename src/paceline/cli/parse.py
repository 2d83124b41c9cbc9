"""Flags to dataclasses, by tyro. What tyro refuses becomes one line with the nearest known name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

# Both are private to tyro, so pyproject.toml allows tyro 1.0 alone.
import tyro._docstrings as docstrings
import tyro._errors as refused

from paceline.errors import UserError
from paceline.experiment.groups import Group, parse_group
from paceline.experiment.overrides import nearest_name

RunName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunNames = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
_NUMBERS_OR_WORD = re.compile(
    r"no type matching \{(.*)\}\|\{(\w+)\} could be instantiated from \[(.*)\]\.\n"
)
"""tyro's message for a field such as `tuple[float, ...] | Literal["balanced"]`."""
CONSTRUCTORS = tyro.constructors.ConstructorRegistry()


@CONSTRUCTORS.primitive_rule
def _group_rule(
    given: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[Group] | None:
    """Take each group of weights as one text."""
    if given.type is not Group:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="GROUP",
        instance_from_str=lambda words: parse_group(words[0]),
        is_instance=lambda value: isinstance(value, Group),
        str_from_instance=lambda group: [str(group)],
    )


DataFolder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]


def parse(kind: Any, program: str, arguments: list[str], default: Any = None) -> Any:
    """Return the flags as an instance of `kind`; raise UserError for what it does not allow."""

    def refuse(event: refused.ParseErrorEvent) -> None:
        raise UserError(f"{_refusal(event, kind)} (see {program} --help)")

    if {"-h", "--help"} & set(arguments):
        join_help_lines(kind)
    with refused.on_parse_error(refuse), CONSTRUCTORS:
        return tyro.cli(
            kind,
            prog=program,
            args=_joined(arguments),
            default=tyro.MISSING_NONPROP if default is None else default,
        )


def join_help_lines(kind: Any) -> None:
    """Join the lines of each flag's help, which tyro would show with the breaks of the source."""
    texts = docstrings.parse_docstring_from_object(kind)  # tyro's cache, changed in place
    texts.update({name: " ".join(text.split()) for name, text in texts.items()})
    for _, hint, _ in _fields(kind):
        if dataclasses.is_dataclass(hint):
            join_help_lines(hint)


def _joined(arguments: list[str], flag: str = "--spark.conf") -> list[str]:
    """Return `--spark.conf A --spark.conf B`, as in spark-submit, as `--spark.conf A B`.

    tyro would drop A.
    """
    values, others, takes = list[str](), list[str](), False
    for word in arguments:
        takes = word == flag or (takes and not word.startswith("--"))
        if word != flag:
            (values if takes else others).append(word)
    return [*others, flag, *values] if values else arguments


def _refusal(event: refused.ParseErrorEvent, kind: Any) -> str:
    """Return what is wrong, what is allowed and what to do."""
    match event:
        case refused.UnrecognizedArgs() | refused.MissingArgs(unrecognized_tokens=[_, *_]):
            tokens = event.tokens if hasattr(event, "tokens") else event.unrecognized_tokens
            return _unknown(tokens[0], kind)
        case refused.MissingArgs():
            names = [_name(missing.arg) for missing in event.missing_arguments]
            return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
        case refused.BadValue():
            count = event.argument.lowered.nargs
            return f"{_name(event.argument)} needs {'a value' if count == 1 else f'{count} values'}"
        case refused.InvalidChoice():
            choices = ", ".join(map(repr, event.choices))
            return f"{_name(event.argument)} is {event.value!r}; it must be one of {choices}"
        case refused.InstantiationFailure() if event.argument and (
            found := _NUMBERS_OR_WORD.match(event.message)
        ):
            numbers, word, given = found.groups()
            how_many = "" if "..." in numbers else f"{len(numbers.split())} "
            given = given.replace("'", "").replace(",", "")
            return f"{_name(event.argument)} is {given}; it must be {how_many}numbers, or {word}"
        case refused.InstantiationFailure() if event.argument:
            given = event.message.rpartition(": ")[2]
            number = "whole number" if "int()" in event.message else "number"
            return f"{_name(event.argument)} is {given}; it must be a {number}"
    return " ".join(str(getattr(event, "message", event)).split())


def _name(argument: Any) -> str:
    flags = argument.lowered.name_or_flags
    return str(argument.lowered.metavar) if argument.is_positional() else flags[-1]


def _unknown(word: str, kind: Any) -> str:
    """Return what is wrong with a word, and the nearest flag."""
    if not word.startswith("-"):
        recipe_first = "the recipe comes first, " * hasattr(kind, "of_recipe")
        return f"cannot understand {word!r}; {recipe_first}a value follows its flag"
    name, known = word.lstrip("-").split("=")[0], list(flags_of(kind))
    near = nearest_name(name, known)
    return f"unknown flag --{name}" + (f"; did you mean --{near}?" if near else "")


def flags_of(kind: Any, prefix: str = "") -> dict[str, tuple[str, ...]]:
    """Return every flag of a command without its dashes, and its values where there are few.

    A flag that takes no value has (), one that takes any value ("",).
    """
    flags: dict[str, tuple[str, ...]] = {}
    for name, hint, extras in _fields(kind):
        if dataclasses.is_dataclass(hint):
            hidden = any(getattr(extra, "name", None) == "" for extra in extras)
            flags |= flags_of(hint, prefix if hidden else f"{prefix}{name}.")
        elif hint is bool:
            flags |= {f"{prefix}{name}": (), f"{prefix}no-{name}": ()}
        elif not _metavar(extras):
            flags[f"{prefix}{name}"] = get_args(hint) if get_origin(hint) is Literal else ("",)
    return flags


def first_word(kind: Any) -> tuple[str, tuple[str, ...]]:
    """Return the name of a command's first word that is not a flag, and its values if few."""
    for _, hint, extras in _fields(kind):
        if metavar := _metavar(extras):
            return metavar, get_args(hint) if get_origin(hint) is Literal else ()
    return "", ()


def _fields(kind: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield the name of each field on the command line, its type, and what tyro is told of it."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        plain, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        yield name.replace("_", "-"), plain, extras


def _metavar(extras: list[Any]) -> str:
    """Return the name in capitals that words have which are not flags; flags have none."""
    return next((extra.metavar for extra in extras if getattr(extra, "metavar", None)), "")
