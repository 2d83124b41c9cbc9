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
