"""Folders to run commands in."""

from pathlib import Path

import pytest

from helpers import write_own_code


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def own_code(here: Path) -> Path:
    """A file with a model, data and actions, in that folder."""
    return write_own_code(here)
