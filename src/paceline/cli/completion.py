"""Shell completion: what can stand where the cursor is. The shell's part is a few lines that ask `paceline completion words ...`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

BASH = r"""_paceline() {
    local IFS=$'\n'
    COMPREPLY=($(paceline completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _paceline paceline
"""
ZSH = r"""#compdef paceline
_paceline() {
    local -a found
    found=(${(f)"$(paceline completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _paceline paceline
"""
FISH = r"""complete -c paceline -a '(paceline completion words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def flags_of(kind: Any, prefix: str = "") -> dict[str, tuple[str, ...]]:
    """Every flag of a dataclass of flags, without its dashes, and the values it takes where there are few; `bool` flags take none.
    Groups that tyro is told to give no name have none here."""
    flags: dict[str, tuple[str, ...]] = {}
    hints = get_type_hints(kind, include_extras=True)
    for item in dataclasses.fields(kind):
        hint, *extras = (
            get_args(hints[item.name])
            if get_origin(hints[item.name]) is Annotated
            else (hints[item.name],)
        )
        name = item.name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            hidden = any(getattr(extra, "name", None) == "" for extra in extras)
            flags |= flags_of(hint, prefix if hidden else f"{prefix}{name}.")
        elif any("POSITIONAL" in str(extra).upper() for extra in extras):
            continue
        elif hint is bool:
            flags |= {f"{prefix}{name}": (), f"{prefix}no-{name}": ()}
        else:
            flags[f"{prefix}{name}"] = (
                tuple(get_args(hint)) if get_origin(hint) is Literal else ("",)
            )
    return flags


def candidates(words: list[str], commands: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """What may stand in place of the last of `words`, which follow the name of the program. `commands` are the flags of each
    command, `first` says what its first word can be. Nothing means: the name of a file."""
    *before, word = words or [""]
    names = sorted(commands)
    depth = 2 if before and any(name.startswith(f"{before[0]} ") for name in names) else 1
    if len(before) < depth:
        found = [
            name.split()[len(before)] for name in names if name.split()[: len(before)] == before
        ]
        return sorted({name for name in found if name.startswith(word)})
    command = " ".join(before[:depth])
    if command not in commands:
        return []
    flags = flags_of(commands[command]) if commands[command] else {}
    values = flags.get(before[-1].lstrip("-"), ()) if before[-1].startswith("--") else ()
    if values:
        return [value for value in values if value and value.startswith(word)]
    if word.startswith("-"):
        return [f"--{flag}" for flag in ["help", *flags] if f"--{flag}".startswith(word)]
    return [
        each for each in (first[command]() if command in first else ()) if each.startswith(word)
    ]
