"""What tests of commands say about how a command ended."""

from __future__ import annotations

from pathlib import Path

from helpers import Ended


def assert_refused(ended: Ended, *parts: str) -> None:
    """Assert that a person's mistake was answered with exit code 2 and one line."""
    assert ended.code == 2, ended
    assert_one_line(ended, *parts)


def assert_one_line(ended: Ended, *parts: str) -> None:
    """Assert that the command printed one error line, which contains all parts."""
    assert ended.err.startswith("paceline: "), ended
    assert ended.err.count("\n") == 1, ended.err
    for part in parts:
        assert part in ended.err
    assert "Traceback" not in ended.out + ended.err


def fine(ended: Ended) -> Ended:
    """Return how the command ended, which must be without an error."""
    assert ended.code == 0, ended
    return ended


def files_in(folder: Path) -> set[str]:
    """Return everything in a folder but Python's caches."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }
