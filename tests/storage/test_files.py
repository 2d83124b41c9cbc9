from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.storage.files import replacing, replacing_path


def fail(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def make(path: Path, content: str, is_folder: bool) -> None:
    if is_folder:
        path.mkdir()
        path = path / "file"
    path.write_text(content)


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_path_is_replaced_only_by_something_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    path = tmp_path / "new folder" / "out"
    inner = path / "file" if is_folder else path
    for content in ("first", "second"):
        with replacing_path(path) as new:
            make(new, content, is_folder)
        assert inner.read_text() == content
    with suppress(ZeroDivisionError), replacing_path(path) as new:
        make(new, "half", is_folder)
        raise ZeroDivisionError
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"), replacing_path(path) as new:
        make(new, "third", is_folder)
    assert inner.read_text() == "second"
    assert os.listdir(path.parent) == ["out"]


def test_a_file_is_replaced_only_if_it_was_written_completely(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as file:
        file.write(b"first")
    with suppress(ZeroDivisionError), replacing(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["file"]
