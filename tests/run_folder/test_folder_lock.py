"""Who may write a local run folder, and who removes one."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.run_folder.folder import DRIVER_FILE, RunFolder
from paceline.storage import retry
from paceline.storage.lock import FileLock, LeaseLost


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


def test_what_a_killed_driver_left_goes_with_the_last_command(tmp_path: Path) -> None:
    """Found by `make chaos`: a killed driver of Spark, then another command that ended the run."""
    first, second = begin(RunFolder(tmp_path)), begin(RunFolder(tmp_path))
    (tmp_path / f"{DRIVER_FILE}0").touch()
    first.__exit__(None, None, None)
    assert (tmp_path / f"{DRIVER_FILE}0").exists()  # it may be the second's
    second.__exit__(None, None, None)
    assert not list(tmp_path.iterdir())


def test_whether_a_folder_is_locked_is_known_on_nfs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def nfs_flock(handle: int, kind: int) -> None:
        """NFS makes byte-range locks of these: exclusive ones need a file open for writing."""
        reads_only = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if kind & fcntl.LOCK_EX and reads_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(handle, kind)

    monkeypatch.setattr(fcntl, "flock", nfs_flock)
    run = RunFolder(tmp_path / "run")
    assert not run.is_locked()
    run.lock()
    assert RunFolder(tmp_path / "run").is_locked()
    run.unlock()
    assert not RunFolder(tmp_path / "run").is_locked()


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_chief_whose_folder_is_another_s_now_writes_nothing_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(retry, "PAUSES_S", (0.0, 0.0, 0.0))
    run = RunFolder(tmp_path / "run")
    run.lock()
    run.metrics.append({"step": 1})
    (tmp_path / "run" / "lock").unlink()
    if how == "replaced":
        other = FileLock(tmp_path / "run" / "lock", "training in it")
        other.acquire()
    who = f"pid {os.getpid()} on host .* has taken over" if how == "replaced" else "has removed"
    for write in (
        lambda: run.metrics.append({"step": 2}),
        lambda: run.write_result({"finished": False}),
        lambda: run.predictions.write({}),
        lambda: run.metrics.truncate(0),
    ):
        with pytest.raises(LeaseLost, match=who):
            write()
    assert [record["step"] for record in run.metrics.read()] == [1]
    assert run.read_result() is None
