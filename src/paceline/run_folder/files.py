"""Files on a disk: written whole or not at all, and one-line errors where the disk refuses.

It owns how files are written and read. Which files a run folder has belongs to `folder`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from paceline.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file whole or not at all: the old one stays until the new one is safe on disk.

    Raises OSError.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            # mkstemp's 0600 would hide runs on shared storage from colleagues
            os.fchmod(file.fileno(), 0o644)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is on disk too
    finally:
        os.close(folder)


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError of one line: cannot `doing` `path`, and why."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {doing} {path}: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """Return the content of a file; empty if there is none."""
    with explained("read", path):
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def write_json(path: Path, value: Any) -> None:
    """Write a value as strict JSON."""
    text = json.dumps(plain(value), indent=2, allow_nan=False) + "\n"
    with explained("write", path), replacing(path) as file:
        file.write(text.encode())


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Return the JSON object in a file; if it is damaged, `advice` is part of the error."""
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {advice}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged (no JSON object); {advice}")
    return value


def plain(value: Any) -> Any:
    """Return a value as strict JSON has it: no NumPy types, and None for NaN and infinity."""
    text = json.dumps(value, default=lambda item: item.tolist())
    return json.loads(text, parse_constant=lambda name: None)
