"""The zoo: trained models with the command that made them and digests to compare a repetition with.

An entry is a small run folder: config.json, result.json, one checkpoint with weights only, and
zoo.json, its row in the table. `zoo:NAME` stands for an entry wherever a run is expected. The
package contains two entries, and the rows of all others. `fetch_entry` brings one of these.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError, did_you_mean
from paceline.experiment.fields import from_json
from paceline.storage.files import read_json
from paceline.storage.locations import cache_folder, is_remote

PREFIX = "zoo:"
ADVICE = "install Paceline again, or make the entry again"
FOLDER = "PACELINE_ZOO"
"""Environment variable that names a further folder of entries."""
PACKAGE = Path(__file__).parents[1] / "zoo"
ARCHIVES = "archives.json"
"""File of the package with the rows of all entries that are archives."""


@dataclass(frozen=True)
class Row:
    """What the table says about an entry."""

    name: str
    command: str
    step: int
    test_accuracy: float | None
    state_sha256: str
    """Digest of the state at the end of the training."""
    first_steps: int
    first_sha256: str
    """Digest of the state after `first_steps` steps."""
    kernels: str
    arithmetic: int = 0
    """Version of the arithmetic that computed both; 0 is older than docs/arithmetic.md."""
    bytes: int = 0
    """Size of the archive, or of the folder."""
    archive_sha256: str = ""


def entries_here() -> dict[str, Path]:
    """Return the folders of the entries on this machine by name; the user's own win."""
    own = os.environ.get(FOLDER)
    folders = [PACKAGE, cache_folder() / "zoo", *([Path(own)] if own else [])]
    files = [file for folder in folders for file in folder.glob("*/zoo.json")]
    return {file.parent.name: file.parent for file in files}


def list_zoo() -> list[Row]:
    """Return the rows of all entries by name: those on this machine, and those of archives."""
    rows = _archived() | {name: find_row(name) for name in entries_here()}
    return [rows[name] for name in sorted(rows)]


def _archived() -> dict[str, Row]:
    rows = read_json(PACKAGE / ARCHIVES, ADVICE)
    return {name: from_json(Row, row) for name, row in rows.items()}


def find_row(name: str) -> Row:
    """Return the row of an entry on this machine, with or without `zoo:`."""
    folder = zoo_folder(name)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return from_json(Row, read_json(folder / "zoo.json", ADVICE) | {"bytes": size})


def zoo_folder(name: str) -> Path:
    """Return the folder of an entry, with or without `zoo:`."""
    name, entries, archived = name.removeprefix(PREFIX), entries_here(), _archived()
    if name in entries:
        return entries[name]
    if name in archived:
        raise UserError(f"zoo:{name} is not here; fetch it with `paceline zoo fetch {name} FROM`")
    raise UserError(f"the zoo has no {name!r}; {did_you_mean(name, sorted(entries | archived))}")


def fetch_entry(name: str, origin: str) -> Path:
    """Bring an entry from the folder or URL of its archive to the cache; return its folder."""
    from paceline.formats.fetch import fetch_archive

    name, archived = name.removeprefix(PREFIX), _archived()
    if name in entries_here() or name not in archived:
        return zoo_folder(name)
    base = origin if is_remote(origin) else Path(origin).expanduser().absolute().as_uri()
    url, target = f"{base.rstrip('/')}/{archive_of(name)}", cache_folder() / "zoo" / name
    fetch_archive(url, archived[name].archive_sha256, target)
    return target


def archive_of(name: str) -> str:
    """Return the file name of an entry's archive. The folder in it has the entry's name."""
    return f"paceline-zoo-{name}.tar"
