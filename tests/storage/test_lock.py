"""Locks on a file of this machine."""

import json
import os
import threading
from pathlib import Path

import pytest

from paceline.storage.lock import FileLock, LeaseLost, _lock_file


def test_a_lock_on_a_file_that_was_removed_keeps_nobody_out_and_is_not_taken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    held = _lock_file(path, 0.0)
    assert held is not None
    got: list[int | None] = []
    waiting = threading.Thread(target=lambda: got.append(_lock_file(path, 20.0)))
    waiting.start()
    threading.Event().wait(0.3)
    path.unlink()
    os.close(held)
    waiting.join()
    assert got[0] is not None
    assert os.path.samestat(os.fstat(got[0]), path.stat())
    os.close(got[0])


@pytest.mark.parametrize("change", [{"epoch": 9}, {"token": "f" * 32}])
def test_a_holder_compares_both_its_number_and_its_token(
    tmp_path: Path, change: dict[str, object]
) -> None:
    lock = FileLock(tmp_path / "lock", "training in run")
    lock.acquire()
    lock.check()
    owner = json.loads(lock.path.read_text())
    lock.path.write_text(json.dumps(owner | change))
    with pytest.raises(LeaseLost, match=f"pid {os.getpid()} on host .* has taken over"):
        lock.check()
    lock.release()
    lock.check()
