"""gs:// through gcsfs, against a server that answers as Google documents (`gcs_server.py`)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gcs_server import Bucket, google  # noqa: F401
from helpers import paceline, program, result_of, wait_until, write_own_code
from paceline.storage import lease
from paceline.storage.backends import Store
from paceline.storage.conditional import read_stamped, swap
from paceline.storage.lock import LeaseLost
from paceline.storage.remote import RemoteRun

URL = "gs://bucket/run"


def test_a_conditional_write_matches_the_generation_that_was_read(google: Bucket) -> None:  # noqa: F811
    store = Store(URL)
    first = swap(store, "one", b"1", None)
    assert first
    assert swap(store, "one", b"2", None) is None, "it exists"
    second = swap(store, "one", b"2", first)
    assert second
    assert swap(store, "one", b"3", first) is None, "it has changed"
    assert read_stamped(store, "one") == (b"2", second)
    assert google.writes == [("run/one", stamp) for stamp in ("0", "0", first, first)]
    store.remove("one")
    assert swap(store, "one", b"3", second) is None, "it is gone"
    assert store.read("one") is None


def test_exactly_one_of_several_takes_a_lease_on_google_storage(google: Bucket) -> None:  # noqa: F811
    written: list[str | None] = []
    threads = [
        threading.Thread(
            target=lambda text=text: written.append(swap(Store(URL), "one", text, None))
        )
        for text in (b"1", b"2", b"3", b"4")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([stamp for stamp in written if stamp]) == 1, written


def test_files_of_every_size_are_put_listed_and_fetched_on_google_storage(
    google: Bucket,  # noqa: F811
    tmp_path: Path,
) -> None:
    store, large = Store(URL), tmp_path / "large"
    large.write_bytes(os.urandom(6 << 20))  # gcsfs uploads it in pieces
    store.put("large", large)
    for number in range(5):
        store.put(f"deep/{number}", b"x" * number)
    assert store.get("large", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == large.read_bytes()
    assert not store.get("missing", tmp_path / "fetched")
    sizes = {name: file.size for name, file in store.files().items()}
    assert sizes == {"large": 6 << 20} | {f"deep/{n}": n for n in range(5)}


def test_a_chief_on_google_storage_that_wakes_up_changes_nothing(
    google: Bucket,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "LOCK_TIMEOUT_S", 0.1)

    def chief(name: str) -> RemoteRun:
        (tmp_path / name).mkdir()
        run = RemoteRun(Store(URL), tmp_path / name, Store(URL, own_connection=True))
        run.lock("", lambda message: None)
        run.pull()
        return run

    frozen = chief("frozen")
    (tmp_path / "frozen" / "config.json").write_text("{}")
    frozen.publish()
    successor = chief("successor")
    (tmp_path / "successor" / "config.json").write_text('{"new": 1}')
    successor.publish()
    successor.unlock()
    before = lease.read_lease(Store(URL))
    (tmp_path / "frozen" / "config.json").write_text('{"of the frozen": 1}')
    for action in (frozen.publish, frozen.beat):
        with pytest.raises(LeaseLost, match="has taken over"):
            action()
    assert lease.read_lease(Store(URL)) == before


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_training_on_google_storage_is_killed_and_ends_with_the_same_bits(
    google: Bucket,  # noqa: F811
    uninterrupted: Path,
    tmp_path: Path,
) -> None:
    write_own_code(tmp_path)
    flags = ("train", "smoke", "--run-dir", URL)
    environment = {"PACELINE_CACHE": str(tmp_path / "cache")}
    with program(
        *(*flags, "--actions", "own.py:wait_for_a_signal"), cwd=tmp_path, environment=environment
    ) as running:
        wait_until(lambda: (tmp_path / "reached").exists() or not running.is_running(), 300)
        os.kill(running.pid, 9)
        os.kill(running.worker(), 9)
    ended = paceline(*flags, cwd=tmp_path, environment=environment, timeout_s=300)
    assert ended.code == 0, ended
    assert ended.last_line["state_sha256"] == result_of(uninterrupted)["state_sha256"]
