"""Where things are: whether a path is a URL, and the folder for copies and indices."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def is_remote(path: str | Path) -> bool:
    """Return whether a path is a URL."""
    return "://" in str(path)


def cache_folder() -> Path:
    """Return the folder in which this machine keeps copies and indices."""
    return Path(os.environ.get("PACELINE_CACHE") or "~/.cache/paceline").expanduser()


def cached(kind: str, url: str) -> Path:
    """Return the local folder for copies of a remote folder."""
    url = url.rstrip("/")
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return cache_folder() / kind / f"{url.rpartition('/')[2]}-{digest}"


def absolute(folder: str) -> str:
    """Return the absolute path of a folder; a URL or an empty text as it is."""
    is_path = folder and not is_remote(folder)
    return os.path.abspath(os.path.expanduser(folder)) if is_path else folder


def found_or_moved(given: str, stored: str) -> str:
    """Return where a run's data is: at its `stored` path, or where `given` leads from here.

    So a run can be used from any folder, and also after it was moved together with its data.
    """
    if not given or not stored or is_remote(stored):
        return given
    moved = not os.path.exists(stored) and os.path.exists(os.path.expanduser(given))
    return given if moved else stored
