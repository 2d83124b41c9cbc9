"""The folder that a source reads: it must be given and exist; hidden entries are ignored."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import UserError
from paceline.storage.files import explained, is_folder, retry


def source_folder(given: str, advice: str) -> Path:
    """Return the folder that `--data.dir` gives. Raise UserError with the `advice` without one."""
    if not given:
        raise UserError(f"the folder of the data is needed: give --data.dir DIR; {advice}")
    folder = Path(given).expanduser()
    if not is_folder(folder):
        raise UserError(f"there is no folder {folder}; {advice}")
    return folder


def visible_entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, in no order, without hidden ones."""
    with explained("read", Path(folder)), os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def read_bytes(file: Path) -> bytes:
    """Return the content of a file. Raise UserError or PassingFault if it cannot be read."""
    with explained("read", file):
        return retry(file.read_bytes)
