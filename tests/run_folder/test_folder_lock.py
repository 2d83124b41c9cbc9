"""Who may write a local run folder, and who removes one."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import PassingFault, UserError
from paceline.maths.state import State, StateLayout
from paceline.run_folder.checkpoints import Checkpoints
from paceline.run_folder.folder import RunFolder
from paceline.storage import files, lock
from paceline.storage.lock import LeaseLost


def begin(run: RunFolder) -> Any:
    command = run.begun()
    command.__enter__()
    return command


def fail(command: Any) -> None:
    error = UserError("the settings are wrong")
    assert not command.__exit__(UserError, error, None)


def test_a_command_that_fails_removes_its_new_folder_only_if_no_other_command_uses_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    fail(begin(RunFolder(path)))
    assert not path.exists()

    first, second = begin(RunFolder(path)), begin(RunFolder(path))
    fail(first)  # the second has not locked the folder yet
    chief = RunFolder(path)
    chief.lock()
    second.__exit__(None, None, None)
    chief.check_lease()
    with pytest.raises(UserError, match="is training in"):
        RunFolder(path).lock(wait_s=0.0)
    chief.unlock()


def test_a_command_that_fails_leaves_the_folder_to_a_chief_that_no_command_started(
    tmp_path: Path,
) -> None:
    command = begin(RunFolder(tmp_path / "run"))
    chief = RunFolder(tmp_path / "run")
    chief.lock()
    fail(command)
    chief.check_lease()
    assert chief.is_locked()
    chief.unlock()


def write(run: RunFolder, what: str, in_a_save: Callable[[], None] = lambda: None) -> None:
    """Write as a chief, or `from memory` as another worker after the chief was lost."""

    class Slow(Checkpoints):
        def _write(self, path: Path, content: bytes) -> None:
            in_a_save()  # a large state takes its time
            super()._write(path, content)

    guard: Callable[[], None] = run.check_lease
    match what:
        case "start":
            run.append_start(1, "local", 1)
        case "metrics":
            run.metrics.append({"step": 2})
        case "cut":
            run.metrics.truncate(0)
        case "result":
            run.write_result({"finished": True})
        case "predictions":
            run.write_predictions({})
        case _:
            if what == "from memory":
                guard = partial(RunFolder(run.path).check_number, run.epoch)
            state = State(1, {"params": np.ones(1, np.float32)})
            Slow(run.checkpoints, StateLayout({"params": (("a", (1,)),)}), guard=guard).save(state)


WRITES = ("start", "metrics", "cut", "result", "predictions", "checkpoint", "from memory")


def contents(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes() for path in files}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    """Return a folder that this process has locked; there are no pauses."""
    monkeypatch.setattr(files, "PAUSES_S", (0.0, 0.0, 0.0))
    run = RunFolder(tmp_path / "run")
    run.lock()
    (run.path / "config.json").write_text("{}")
    run.metrics.append({"step": 1})
    yield run
    run.unlock()


def take_over(run: RunFolder) -> None:
    """A network file system gives the lock away while its holder is disconnected."""
    assert run._lock._handle is not None
    fcntl.flock(run._lock._handle, fcntl.LOCK_UN)
    other = RunFolder(run.path)
    other.lock()
    other.unlock()


@pytest.mark.parametrize("what", WRITES)
def test_a_chief_that_lost_its_lock_writes_nothing_and_names_its_successor(
    run: RunFolder, what: str
) -> None:
    write(run, what)
    run.metrics.append({"step": 1})
    take_over(run)
    before = contents(run.path)
    with pytest.raises(LeaseLost, match="has taken over"):
        write(run, what)
    assert contents(run.path) == before


@pytest.mark.parametrize("what", ["checkpoint", "from memory"])
def test_a_chief_that_loses_its_lock_in_the_middle_of_a_save_writes_nothing(
    run: RunFolder, what: str
) -> None:
    before = contents(run.path)
    with pytest.raises(LeaseLost, match="has taken over"):
        write(run, what, in_a_save=lambda: take_over(run))
    assert contents(run.path) == before


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOENT])
@pytest.mark.parametrize("what", ["start", "result", "checkpoint", "from memory"])
def test_a_chief_whose_lock_cannot_be_read_waits_and_then_writes_nothing(
    run: RunFolder, what: str, code: int, lasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, left = files.read_run_file, 10**9 if lasts else len(files.PAUSES_S)

    def read_bytes(path: Path) -> bytes:
        nonlocal left
        if path.name == "lock" and left:
            left -= 1
            raise OSError(code, os.strerror(code))
        return read(path)

    before = contents(run.path)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "read_run_file", read_bytes)
        if not lasts:
            write(run, what)
            return
        kind = LeaseLost if code == errno.ENOENT else PassingFault
        with pytest.raises(kind, match=r"lock: |has removed|has taken over"):
            write(run, what)
    assert contents(run.path) == before
