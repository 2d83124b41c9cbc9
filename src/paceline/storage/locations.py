"""Where things are: paths and URLs, the cache of this machine, and where data is read from.

Remote storage is imported only if a URL is used.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paceline.errors import UserError
from paceline.messages import Send, Transfer


def is_remote(path: str | Path) -> bool:
    """Return whether a path is a URL."""
    return "://" in str(path)


def seconds(name: str, default_s: float) -> float:
    """Return the seconds that an environment variable sets, or the default."""
    text = os.environ.get(name) or str(default_s)
    with suppress(ValueError):
        if 0.01 <= float(text) <= 86_400:
            return float(text)
    raise UserError(f"{name} is {text!r}; it must be a number of seconds from 0.01 to 86400")


def cache_folder() -> Path:
    """Return the folder in which this machine keeps copies and indices."""
    return Path(os.environ.get("PACELINE_CACHE") or "~/.cache/paceline").expanduser()


def cached(kind: str, url: str) -> Path:
    """Return the local folder for copies of a remote folder."""
    url = url.rstrip("/")
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return cache_folder() / kind / f"{url.rpartition('/')[2]}-{digest}"


def local_folder(folder: str, report: Callable[[str], None] = lambda text: None) -> str:
    """Return `folder` itself; of a remote data set, the folder of its copy on this machine."""
    if not is_remote(folder):
        return folder
    from paceline.storage.cache import up_to_date_copy

    return up_to_date_copy(folder, report)


def bring_data(folder: str, send: Send) -> None:
    """Copy a data set in a worker, before anything is built; report the progress to its parent."""
    local_folder(folder, lambda text: send(Transfer(text)))
