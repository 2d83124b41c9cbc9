"""Locks on a file of this machine."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.storage.lock import FileLock, lock_file


def test_a_lock_on_a_file_that_was_removed_keeps_nobody_out_and_is_not_taken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    held = lock_file(path, fcntl.LOCK_EX, 0.0)
    assert held is not None
    got: list[int | None] = []
    waiting = threading.Thread(target=lambda: got.append(lock_file(path, fcntl.LOCK_EX, 20.0)))
    waiting.start()
    threading.Event().wait(0.3)
    path.unlink()
    os.close(held)
    waiting.join()
    assert got[0] is not None
    assert os.path.samestat(os.fstat(got[0]), path.stat())
    os.close(got[0])


def test_one_process_at_a_time_holds_a_lock_and_its_number_grows(tmp_path: Path) -> None:
    for expected in (1, 2, 3):
        lock = FileLock(tmp_path / "lock", "training in it")
        lock.acquire()
        assert lock.epoch == expected
        with pytest.raises(UserError, match=f"pid {os.getpid()} on host .* is training in it"):
            FileLock(tmp_path / "lock", "training in it").acquire()
        lock.release()
