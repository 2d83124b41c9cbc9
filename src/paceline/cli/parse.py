"""Flags to dataclasses, through tyro. tyro's errors become one line with the nearest name."""

import dataclasses
import io
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from functools import cache, partial
from itertools import pairwise, takewhile
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import docstring_parser
import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from paceline.errors import UserError
from paceline.experiment.optimizer import Group, parse_group

RunName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunNames = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
DataFolder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]

DATA_DIR = ("--data.dir", "--data-dir", "--data")
CONSTRUCTORS = ConstructorRegistry()
"""Within it, tyro knows groups of weights, and shows help without the line breaks of the source."""


@CONSTRUCTORS.primitive_rule
def _group_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Group] | None:
    """Take each group of weights as one text."""
    if info.type is not Group:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="GROUP",
        instance_from_str=lambda words: parse_group(words[0]),
        is_instance=lambda value: isinstance(value, Group),
        str_from_instance=lambda group: [str(group)],
    )


@CONSTRUCTORS.struct_rule
def _dataclass_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Take the help of a flag from the text below its field, as one paragraph."""
    is_ours = info.type.__module__.startswith("paceline.")
    if not dataclasses.is_dataclass(info.type) or not is_ours or info.type is Group:
        return None
    hints = get_type_hints(info.type, include_extras=True)
    fields = tuple(
        StructFieldSpec(
            item.name,
            _quick(hints[item.name]),
            _default(item, info.default),
            partial(_text, info.type, item.name),
        )
        for item in dataclasses.fields(info.type)
    )
    return StructConstructorSpec(instantiate=info.type, fields=fields)


def _quick(hint: Any) -> Any:
    """Return the hint of a tuple or a union as any object with tyro's own constructor. To check the
    default of such a type, tyro would import typeguard, and with it asyncio."""
    plain, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(plain) in (None, Literal):
        return hint
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(plain, set()))
    return Annotated[object, spec, *extras]


def _text(kind: Any, name: str) -> str | None:
    """Return the help of a field. tyro asks for it only if help is printed."""
    return texts_of(kind).get(name)


@cache
def texts_of(kind: Any) -> dict[str, str]:
    """Return the help of each field: the text below it, as one paragraph."""
    return {
        each.arg_name: " ".join((each.description or "").split())
        for base in filter(dataclasses.is_dataclass, kind.__mro__)
        for each in docstring_parser.parse_from_object(base).params
    }


def _default(item: dataclasses.Field[Any], defaults: Any) -> Any:
    if dataclasses.is_dataclass(defaults):
        return getattr(defaults, item.name)
    made = item.default_factory
    own = item.default if made is dataclasses.MISSING else made()
    return tyro.MISSING_NONPROP if own is dataclasses.MISSING else own


def parse(kind: Any, program: str, arguments: list[str], default: Any = None) -> Any:
    """Return the flags as an instance of `kind`; raise UserError for what it does not allow."""
    panel = io.StringIO()
    arguments = [_long(word, kind) for word in _without_gpus(arguments, kind)]
    if arguments.count("--spark.conf") > 1:  # tyro would drop all but the last
        raise UserError("--spark.conf was given twice; give all settings after one --spark.conf")
    try:
        with CONSTRUCTORS, redirect_stderr(panel):
            command, unknown = tyro.cli(
                kind,
                prog=program,
                args=arguments,
                default=tyro.MISSING_NONPROP if default is None else default,
                return_unknown_args=True,
            )
    except SystemExit as end:
        if not end.code:  # after help
            raise
        lines = [line.strip("│ ") for line in panel.getvalue().splitlines()[1:]]
        text = " ".join(takewhile(lambda line: line and line[0] not in "─╰", lines))
        reason = text.removesuffix(".") or "the flags cannot be understood"
        raise UserError(f"{reason} (see {program} --help)") from None
    if unknown:
        raise UserError(f"{_unknown(unknown[0], kind)} (see {program} --help)")
    return command


def _without_gpus(words: list[str], kind: Any) -> list[str]:
    """Return the words with what --gpus N is short for; flags that are given are not changed."""
    joined = " ".join(words).replace("=", " ").split()
    given = dict(zip(joined, [*joined, ""][1:], strict=True))
    if "--gpus" not in given or "replicas" not in flags_of(kind):
        return words
    from paceline.experiment.names import settings_of_gpus

    at = next(k for k, word in enumerate(words) if word.split("=")[0] == "--gpus")
    rest = words[:at] + words[at + 1 + ("=" not in words[at]) :]
    if "--replicas" in given:
        raise UserError("--gpus is short for --replicas and --devices; pass --gpus or --replicas")
    settings = settings_of_gpus(given["--gpus"], given.get("--on", ""), given.get("--workers"))
    return rest + [f"--{n}={value}" for n, value in settings.items() if f"--{n}" not in given]


def _long(word: str, kind: Any) -> str:
    """Return a flag by its long name: --schedule.rate for --lr, if the command has that flag."""
    name, equals, value = word.removeprefix("--").partition("=")
    if not word.startswith("--") or name in (flags := set(flags_of(kind))):
        return word
    from paceline.experiment.names import SHORT_NAMES

    long = SHORT_NAMES.get(name.replace("_", "-"))
    return f"--{long}{equals}{value}" if long in flags else word


def data_folder(arguments: Sequence[str]) -> str:
    """Return the folder that --data.dir or a short name of it gives: my-images depends on it."""
    words = [part for word in arguments for part in word.split("=", 1)]
    given = (value for flag, value in pairwise(words) if flag.replace("_", "-") in DATA_DIR)
    return next(given, "")


def _unknown(word: str, kind: Any) -> str:
    """Return what is wrong with a word, and the nearest flag."""
    if not word.startswith("-"):
        recipe_first = "the recipe comes first, " * hasattr(kind, "of_recipe")
        return f"cannot understand {word!r}; {recipe_first}a value follows its flag"
    from paceline.experiment.names import HINTS, nearest_name

    name = word.lstrip("-").split("=")[0].replace("_", "-")
    if hint := HINTS.get(name):
        return f"unknown flag --{name}; {hint}"
    near = nearest_name(name, list(flags_of(kind)))
    return f"unknown flag --{name}" + (f"; did you mean --{near}?" if near else "")


def fields_of(kind: Any) -> Iterator[tuple[str, Any, bool, bool]]:
    """Yield name and type of each field, whether its flags have no prefix, and if it is a flag."""
    for field, hint in get_type_hints(kind, include_extras=True).items():
        plain, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        is_unnamed = any(getattr(extra, "name", None) == "" for extra in extras)
        yield field, plain, is_unnamed, not any(getattr(each, "metavar", None) for each in extras)


def flags_of(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yield every flag of a command without its dashes."""
    for field, plain, is_unnamed, is_flag in fields_of(kind):
        name = field.replace("_", "-")
        if dataclasses.is_dataclass(plain):
            yield from flags_of(plain, prefix if is_unnamed else f"{prefix}{name}.")
        elif plain is bool:
            yield from (f"{prefix}{name}", f"{prefix}no-{name}")
        elif is_flag:
            yield f"{prefix}{name}"
