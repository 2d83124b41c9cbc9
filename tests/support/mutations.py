"""Damage to bytes and to JSON, decided by a random generator with a seed, and what gives it to
readers. Not a test itself."""

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.storage.files import sealed

Try = Callable[[random.Random], bytes]
"""Mutates an input, gives it to the readers, checks what they return; returns the input."""

KINDS = ("flip", "overwrite", "cut", "drop", "insert")


def mutate(content: bytes, chance: random.Random, kinds: Sequence[str] = (*KINDS, "move")) -> bytes:
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        content = _damage(content, chance, chance.choice(kinds)) if content else content
    return content


def _damage(content: bytes, chance: random.Random, kind: str) -> bytes:
    place, piece, length = chance.randrange(len(content)), b"", 0
    match kind:
        case "flip":
            piece, length = bytes([content[place] ^ 1 << chance.randrange(8)]), 1
        case "overwrite":
            length = chance.choice((1, 2, 4, 8, 12, 40))
            piece = chance.choice((bytes(length), b"\xff" * length, chance.randbytes(length)))
        case "cut":
            length = len(content)
        case "drop":
            length = chance.randrange(1, 30)
        case "insert":
            piece = chance.randbytes(chance.randrange(1, 30))
        case "move":  # a piece of the content over or between the rest
            start = chance.randrange(len(content))
            piece = content[start : start + chance.randrange(1, 200)]
            length = chance.choice((0, len(piece)))
    return content[:place] + piece + content[place + length :]


HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e-320, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "\0", "\ud800", "\x85", "²", "nan"),
    *("../../etc/passwd", "os:system", "a" * 5000, [], {}, [[]], [None], [1, 2, 3], [-1, 0, 2**40]),
    *({"": 0}, {"step": {}}, ["a", 1], [1e308, 1e308, 1e308], [0.0] * 3),
)


def mutate_json(value: Any, chance: random.Random) -> Any:
    """Replace, remove or add some values anywhere in nested JSON."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.choice((1, 1, 2, 4))):
        value = _mutate_one(value, chance)
    return value


def _mutate_one(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        match chance.randrange(10):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return value | {chance.choice(("", "new", "step", key + "x")): value[key]}
        return value | {key: _mutate_one(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], _mutate_one(value[place], chance), *value[place + 1 :]]
    if isinstance(value, int | float) and chance.random() < 0.3:
        return chance.choice(
            (-value, value + 1, value * 10**9, value * 0.1 if abs(value) < 2**60 else 0)
        )
    return chance.choice(HOSTILE_VALUES)


def json_input(original: dict[str, Any], chance: random.Random) -> bytes:
    """Damage a sealed object: its bytes, its values with a right checksum, or without one."""
    kind = chance.randrange(4)
    if kind == 0:
        return mutate(json.dumps(sealed(original)).encode(), chance)
    if kind == 1:
        return mutate(json.dumps(original, indent=2).encode(), chance)
    value = mutate_json(original, chance)
    with suppress(ValueError, TypeError):
        value = sealed(value) if kind == 2 and isinstance(value, dict) else value
    if chance.random() < 0.01:
        return b'{"experiment": ' + b"[" * 100_000
    return json.dumps(value).encode("utf-8", "surrogatepass")


class each_refused:
    """Accepts a UserError of one line of a sensible length."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, UserError):
            return False
        text = str(error)
        assert len(text.split("\n")) == 1, f"not one line: {text!r}"
        assert len(text) < 20_000, f"a line of {len(text)} characters: {text[:200]!r}"
        return True


def reading(content_of: Try, read: Callable[[bytes], object], file: Path | None = None) -> Try:
    """Return what gives inputs to a reader, through a file or as bytes."""

    def attempt(chance: random.Random) -> bytes:
        content = content_of(chance)
        if file:
            file.write_bytes(content)
        with each_refused():
            read(content)
        return content

    return attempt


def reading_files(
    folder: Path, read: Callable[[Path, bytes], object], special: dict[str, Try] | None = None
) -> Try:
    """Return what damages one of the files of a folder, or as `special` says, and restores all."""
    wholes = {path: path.read_bytes() for path in sorted(folder.iterdir())}

    def attempt(chance: random.Random) -> bytes:
        path = chance.choice(list(wholes))
        content = (special or {}).get(path.name, damaged(wholes[path]))(chance)
        path.write_bytes(content)
        read(path, content)
        for each, whole in wholes.items():
            each.write_bytes(whole)
        return content

    return attempt


def damaged(*wholes: bytes) -> Try:
    return lambda chance: mutate(chance.choice(wholes), chance)


def bytes_or_json(original: Any) -> Try:
    """Return what damages JSON: its bytes or its values."""

    def content_of(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return mutate(json.dumps(original).encode(), chance)
        return json.dumps(mutate_json(original, chance)).encode("utf-8", "surrogatepass")

    return content_of
