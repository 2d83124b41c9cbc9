"""Where the data of a run is: its whole path, so that a run can be used from any folder."""

from __future__ import annotations

import os
from typing import Any

from paceline.storage.locations import is_remote


def whole_path(folder: str) -> str:
    """Return the path that `--data.dir` means here; a URL or an empty one as it is."""
    is_path = folder and not is_remote(folder)
    return os.path.abspath(os.path.expanduser(folder)) if is_path else folder


def find_data(given: str, stored: Any) -> str:
    """Return where the data is: where it was (`stored`), or where `--data.dir` leads from here.

    Older runs have stored nothing.
    """
    if not given or not stored or not isinstance(stored, str) or is_remote(stored):
        return given
    moved_along = not os.path.exists(stored) and os.path.exists(os.path.expanduser(given))
    return given if moved_along else stored
