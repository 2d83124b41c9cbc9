from __future__ import annotations

import pytest

from paceline.storage.locations import cached, is_remote, local_folder


def test_a_url_is_remote_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "/cache")
    url = "s3://bucket/run/"
    assert is_remote(url)
    assert cached("runs", url) == cached("runs", "s3://bucket/run")
    assert cached("runs", url) != cached("runs", "s3://other/run")
    assert str(cached("runs", url)).startswith("/cache/runs/run-")


def test_a_local_folder_is_used_where_it_is() -> None:
    assert not is_remote("data")
    assert local_folder("data") == "data"
