"""Files on a disk: written completely or not at all, with retries and one-line errors.

It also owns the checksum in JSON files. `run_folder.folder` knows which files a run contains.
"""

import errno
import json
import os
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from paceline.errors import PassingFault, UserError
from paceline.experiment.fields import Json

T = TypeVar("T")
Opener = Callable[[str, int], int]

CHECKSUM = "checksum"
MOST_TEXT_BYTES = 1 << 28
"""Larger files of text are refused: none that Paceline writes comes near."""
PAUSES_S = (0.3, 1.0, 3.0)
"""Between the tries to use a file on a disk."""
PASSING = {
    *(errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EAGAIN, errno.ENOTCONN),
    *(errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.ESHUTDOWN),
}
"""Errors of a disk, a mount or a network that may be gone a moment later."""


def may_pass(error: Exception) -> bool:
    """Return whether the same action may succeed later."""
    is_passing = isinstance(error, OSError) and error.errno in PASSING
    return is_passing or isinstance(error, PassingFault)


def retry(
    action: Callable[[], T],
    pauses_s: Iterable[float] | None = None,
    passes: Callable[[Exception], bool] = may_pass,
    warn: Callable[[str], None] = lambda text: None,
) -> T:
    """Return the result of `action`; after an error that `passes`, pause and try again.

    There is one try more than there are pauses, by default `PAUSES_S`. The last error is raised.
    """
    for pause_s in PAUSES_S if pauses_s is None else pauses_s:
        try:
            return action()
        except Exception as error:
            if not passes(error):
                raise
            warn(f"{error}; trying again in {pause_s:.0f} s")
        time.sleep(pause_s)
    return action()


def growing_pauses(first_s: float, longest_s: float, total_s: float) -> Iterator[float]:
    """Yield pauses, each twice the one before, as long as they end within `total_s` from now."""
    deadline, pause_s = time.monotonic() + total_s, first_s
    while time.monotonic() + pause_s <= deadline:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file completely or not at all: the old one stays until the new one is on disk."""
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
        reason = error.strerror or error
        if error.errno == errno.EEXIST and path.is_symlink():
            reason = f"it is a link to {os.readlink(path)}, which does not exist"
        text = f"cannot {doing} {path}: {reason}"
        gone = error.errno == errno.ENOENT and doing.startswith("read")
        raise (PassingFault if gone or may_pass(error) else UserError)(text) from error


def to_log(text: object) -> None:
    """Print a line into the log of this process, which may be on the disk that is full."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def fill_standard_streams() -> None:
    """Open the standard streams that this process lacks: no file may take their place."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)


def silence(stream: IO[str]) -> None:
    """Drop what is written to a stream that fails: Python tries to write the rest at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_folder(path: Path) -> bool:
    """Return whether there is a folder; raise PassingFault if the disk fails."""
    with explained("look at", path):
        return path.is_dir()


def is_file(path: Path) -> bool:
    """Return whether there is a file; raise PassingFault if the disk fails."""
    with explained("look at", path):
        return path.is_file()


def refuse_link(path: Path) -> None:
    """Raise UserError if a file or folder of a run is a link: its maker would choose the file."""
    if path.is_symlink():
        text = "is a link, and a run folder cannot contain links; replace it with its target"
        raise UserError(f"{path} {text}")


def run_file(path: str, flags: int) -> int:
    """Open a file of a run with `open(path, mode, opener=run_file)`: no link, no stranger's."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError:
        refuse_link(Path(path))
        raise
    file, folder = os.fstat(handle), os.stat(Path(path).parent)
    is_strange = file.st_uid not in (folder.st_uid, os.getuid(), 0)
    if stat.S_ISREG(file.st_mode) and not (is_strange and folder.st_mode & stat.S_IWOTH):
        return handle
    os.close(handle)
    raise UserError(f"{path} is not a regular file, or belongs to another user; remove it")


def read_run_file(path: Path) -> bytes:
    """Return the content of a file that belongs to a run. Raises OSError and UserError."""
    with open(path, "rb", opener=run_file) as file:
        return file.read()


def read_text(path: Path, opener: Opener | None = None) -> str:
    """Return the content of a file; empty if there is none. With `run_file` it is one of a run."""

    def read() -> bytes:
        with open(path, "rb", opener=opener) as file:
            return file.read(MOST_TEXT_BYTES + 1)

    with explained("read", path):
        try:
            content = retry(read)
        except FileNotFoundError:
            return ""
    if len(content) > MOST_TEXT_BYTES:
        raise UserError(f"{path} is damaged: it is too large; restore it from a copy")
    return content.decode(errors="replace")


def write_json(path: Path, value: object) -> None:
    """Write a value as strict JSON."""
    text = json.dumps(plain(value), indent=2, allow_nan=False) + "\n"
    with explained("write", path), replacing(path) as file:
        file.write(text.encode())


def read_json(path: Path, advice: str, opener: Opener | None = None) -> Json:
    """Return the JSON object in a file, its checksum verified if it has one.

    A person who edits a file removes the checksum. If the file is damaged, `advice` is part of the
    error.
    """
    try:
        value = json.loads(read_text(path, opener))
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        return unsealed(value) if CHECKSUM in value else value
    except (ValueError, RecursionError) as error:
        reason = "too many levels" if isinstance(error, RecursionError) else error
        raise UserError(f"{path} is damaged ({reason}); {advice}") from error


def sealed(value: Json) -> Json:
    """Return an object of strict JSON with its checksum as one more field."""
    value = plain(value)
    return value | {CHECKSUM: _checksum(value)}


def unsealed(value: Json) -> Json:
    """Return an object without its checksum; raise ValueError if the checksum does not fit."""
    others = {name: each for name, each in value.items() if name != CHECKSUM}
    if value.get(CHECKSUM) != _checksum(others):
        raise ValueError(
            f"it does not fit its {CHECKSUM}; if you changed it yourself, remove that field"
        )
    return others


def _checksum(value: Json) -> str:
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def plain(value: Any) -> Any:
    """Return a value as strict JSON has it: no NumPy types, and None for NaN and infinity."""
    text = json.dumps(value, default=lambda item: item.tolist())
    return json.loads(text, parse_constant=lambda name: None)
