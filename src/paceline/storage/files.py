"""Files on a disk: written completely or not at all, and one-line errors if the disk fails.

It owns how files are written and read, and the checksum in JSON that a run shows as results. Which
files a run folder has belongs to `folder`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from paceline.errors import PassingFault, UserError
from paceline.storage.retry import may_pass, retry

CHECKSUM = "checksum"
MOST_JSON_BYTES = 1 << 28
"""Larger files of JSON are refused: none that Paceline writes comes near."""


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file completely or not at all: the old one stays until the new one is on disk.

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
def replacing_path(path: Path) -> Iterator[Path]:
    """Yield the path of a new file or folder to make; move it to `path` when it is complete.

    What was at `path` stays until then. A folder is replaced in two steps: for a moment there is
    none. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as temporary:
        new = Path(temporary, path.name)
        yield new
        old = Path(temporary, ".old")
        if path.is_dir():
            os.rename(path, old)
        try:
            os.replace(new, path)
        except OSError:
            if old.exists():
                os.rename(old, path)
            raise


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError of one line: cannot `doing` `path`, and why.

    It is a PassingFault if the cause may pass, or if a file vanishes while it is read.
    """
    try:
        yield
    except OSError as error:
        text = f"cannot {doing} {path}: {error.strerror or error}"
        gone = error.errno == errno.ENOENT and doing.startswith("read")
        raise (PassingFault if gone or may_pass(error) else UserError)(text) from error


def to_log(text: object) -> None:
    """Print a line into the log of this process, which may be on the disk that is full."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def is_folder(path: Path) -> bool:
    """Return whether there is a folder. Unlike pathlib, raise PassingFault if the disk fails."""
    return stat.S_ISDIR(_mode(path))


def is_file(path: Path) -> bool:
    """Return whether there is a file. Unlike pathlib, raise PassingFault if the disk fails."""
    return stat.S_ISREG(_mode(path))


def _mode(path: Path) -> int:
    with explained("look at", path):
        try:
            return os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):  # or a name that cannot be
            return 0


def stat_of(path: Path) -> tuple[int, int] | None:
    """Return size and time of a file, the latter in nanoseconds; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def read_exactly(file: IO[bytes], size: int) -> bytes:
    """Return `size` bytes of a file that is long enough. Fewer are a fault of the disk: OSError.

    `numpy.fromfile` is not used for files: it returns fewer numbers if the disk fails.
    """
    content = file.read(size)
    if len(content) < size:
        raise OSError(errno.EIO, f"only {len(content):,} of {size:,} bytes could be read")
    return content


def read_text(path: Path) -> str:
    """Return the content of a file; empty if there is none."""

    def read() -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    with explained("read", path):
        return retry(read)


def write_json(path: Path, value: Any) -> None:
    """Write a value as strict JSON."""
    text = json.dumps(plain(value), indent=2, allow_nan=False) + "\n"
    with explained("write", path), replacing(path) as file:
        file.write(text.encode())


def read_json(path: Path, advice: str, newest: int | None = None) -> dict[str, Any]:
    """Return the JSON object in a file, its checksum verified if it has one.

    A person who edits a file removes the checksum. If the file is damaged, `advice` is part of the
    error. An object of a `format` above `newest` is not verified: a newer version wrote it.
    """
    try:
        with explained("read", path):
            if path.exists() and path.stat().st_size > MOST_JSON_BYTES:
                raise ValueError("it is too large")
        value = json.loads(read_text(path))
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        written_by = value.get("format")
        is_newer = newest is not None and type(written_by) is int and written_by > newest
        return value if is_newer or CHECKSUM not in value else unsealed(value)
    except (ValueError, RecursionError) as error:
        reason = "too many levels" if isinstance(error, RecursionError) else error
        raise UserError(f"{path} is damaged ({reason}); {advice}") from error


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object of strict JSON with its checksum as one more field."""
    value = plain(value)
    return value | {CHECKSUM: _checksum(value)}


def unsealed(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object without its checksum; raise ValueError if the checksum does not fit."""
    others = {name: each for name, each in value.items() if name != CHECKSUM}
    if value.get(CHECKSUM) != _checksum(others):
        raise ValueError(
            f"it does not fit its {CHECKSUM}; if you changed it yourself, remove that field"
        )
    return others


def _checksum(value: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def plain(value: Any) -> Any:
    """Return a value as strict JSON has it: no NumPy types, and None for NaN and infinity."""
    text = json.dumps(value, default=lambda item: item.tolist())
    return json.loads(text, parse_constant=lambda name: None)
