import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.errors import PassingFault, UserError
from paceline.storage import files
from paceline.storage.files import (
    explained,
    growing_pauses,
    may_pass,
    replacing,
    replacing_path,
    retry,
)


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


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(files, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.EIO, "input/output error"), True),
        (OSError(errno.ENOENT, "no such file"), False),
        (PassingFault("the disk is away"), True),
        (UserError("a wrong flag"), False),
        (ValueError("damaged"), False),
    ],
)
def test_only_errors_that_may_pass_are_tried_again(
    error: Exception, passes: bool, clock: Clock
) -> None:
    assert may_pass(error) == passes
    calls = []

    def action() -> None:
        calls.append(None)
        raise error

    with pytest.raises(type(error)):
        retry(action, [0.1] * 4)
    assert len(calls) == (5 if passes else 1)


def test_the_result_comes_after_the_error_has_passed(clock: Clock) -> None:
    warnings: list[str] = []

    def action() -> float:
        if clock.now < 5:
            raise PassingFault("away")
        return clock.now

    assert retry(action, growing_pauses(1, 30, 60), warn=warnings.append) == 7
    assert warnings == [f"away; trying again in {pause} s" for pause in (1, 2, 4)]


def test_pauses_grow_and_end_within_the_total(clock: Clock) -> None:
    found = []
    for pause_s in growing_pauses(1, 8, 30):
        found.append(pause_s)
        clock.sleep(pause_s)
    assert found == [1, 2, 4, 8, 8]
    assert list(growing_pauses(0.1, 0.1, 0)) == []


def test_a_link_to_nothing_says_so(tmp_path: Path) -> None:
    link = tmp_path / "run"
    link.symlink_to("elsewhere")
    with (
        pytest.raises(UserError, match="run: it is a link to elsewhere, which does not exist"),
        explained("make", link),
    ):
        link.mkdir(exist_ok=True)
