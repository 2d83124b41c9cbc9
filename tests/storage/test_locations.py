from __future__ import annotations

from pathlib import Path

import pytest

from paceline.storage.locations import absolute, cached, found_or_moved, is_remote, local_folder


def test_a_url_is_remote_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "/cache")
    url = "s3://bucket/run/"
    assert is_remote(url)
    assert absolute(url) == url
    assert cached("runs", url) == cached("runs", "s3://bucket/run")
    assert cached("runs", url) != cached("runs", "s3://other/run")
    assert str(cached("runs", url)).startswith("/cache/runs/run-")


def test_a_local_folder_is_used_where_it_is() -> None:
    assert not is_remote("data")
    assert local_folder("data") == "data"
    assert absolute("data") == str(Path.cwd() / "data")
    assert absolute("") == ""


def test_data_is_found_at_its_stored_path_or_where_it_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    stored = str(tmp_path / "old" / "data")
    assert found_or_moved("data", stored) == "data", "moved together with the run"
    assert found_or_moved("gone", stored) == stored
    (tmp_path / "old" / "data").mkdir(parents=True)
    assert found_or_moved("data", stored) == stored
    assert found_or_moved("s3://bucket/data", "s3://bucket/data") == "s3://bucket/data"
    assert found_or_moved("", "") == ""
