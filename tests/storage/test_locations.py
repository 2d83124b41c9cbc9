import pytest

from paceline.errors import UserError
from paceline.storage.locations import cached, is_remote, local_folder, seconds


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


@pytest.mark.parametrize("text", ["abc", "nan", "inf", "-1", "0", "1e9"])
def test_a_time_limit_that_is_not_a_number_of_seconds_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PACELINE_LOCK_TIMEOUT_S", text)
    with pytest.raises(UserError, match=f"PACELINE_LOCK_TIMEOUT_S is '{text}'; it must be a numb"):
        seconds("PACELINE_LOCK_TIMEOUT_S", 60.0)


def test_a_time_limit_is_the_default_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_LOCK_TIMEOUT_S", "")
    assert seconds("PACELINE_LOCK_TIMEOUT_S", 60.0) == 60.0
    monkeypatch.setenv("PACELINE_LOCK_TIMEOUT_S", "0.5")
    assert seconds("PACELINE_LOCK_TIMEOUT_S", 60.0) == 0.5
