"""Folders on S3 (moto's server) and on Google Cloud Storage (`gcs_server.py`), file by file."""

import sys
from pathlib import Path

import boto3
import numpy as np
import pytest

from gcs_server import google_server, key_of
from helpers import free_port
from paceline.errors import UserError
from paceline.storage import remote
from paceline.storage.remote import (
    ReadOnlyFolder,
    StorageError,
    StorageFault,
    Store,
    open_to_read,
    open_to_write,
)
from s3_server import server


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "gs":
        request.getfixturevalue("google")
        return Store("gs://bucket/run")
    return Store(request.getfixturevalue("folder"))


def again(store: Store) -> Store:
    """Return the same folder as another process has it."""
    return Store(store.url)


def test_a_conditional_write_is_refused_if_the_file_has_changed_or_is_gone(store: Store) -> None:
    first = store.swap("one", b"1", None)
    assert first
    assert store.swap("one", b"2", None) is None
    second = store.swap("one", b"2", first)
    assert second
    assert store.swap("one", b"3", first) is None
    found = again(store).read_versioned("one")
    assert found
    assert found == (b"2", second)
    store.remove("one")
    store.remove("one")
    assert store.swap("one", b"3", second) is None
    assert store.read("one") is None


def test_files_of_every_size_are_put_listed_and_fetched(store: Store, tmp_path: Path) -> None:
    # the fake of Google's server takes no uploads in parts
    size = 12 << 20 if store.url.startswith("s3:") else 1 << 20
    content = np.random.default_rng(0).bytes(size)
    (tmp_path / "large").write_bytes(content)
    store.put("large", tmp_path / "large")
    (tmp_path / "empty").touch()
    store.put("empty", tmp_path / "empty")
    assert store.read("empty") == b""
    for number in range(1, 6):
        store.put(f"deep/{number}", b"x" * number)
    pieces: list[int] = []
    assert store.get("large", tmp_path / "back", pieces.append)
    assert (tmp_path / "back").read_bytes() == content
    assert sum(pieces) == len(content)
    assert not store.get("missing", tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    before = store.files()
    expected = {"large": size} | {f"deep/{number}": number for number in range(1, 6)}
    assert {name: file.size for name, file in before.items()} == expected
    again(store).put("deep/1", b"y")
    assert store.files()["deep/1"] != before["deep/1"]


@pytest.mark.parametrize("name", ["a b.png", "[1]#~%20.png", "zo\u00eb.png", "a+b=c&d.png"])
def test_names_that_need_quotes_are_kept(store: Store, name: str, tmp_path: Path) -> None:
    store.put(f"train/{name}", b"x")
    assert set(store.files()) == {f"train/{name}"}
    assert store.get(f"train/{name}", tmp_path / "back")


def put_object(folder: str, name: str) -> None:
    key = f"{folder.removeprefix('s3://bucket/')}/{name}"
    boto3.client("s3").put_object(Bucket="bucket", Key=key, Body=b"")


def test_folder_markers_are_not_files(folder: str) -> None:
    for name in ("", "train/", "train/cat/", "train/dog/"):
        put_object(folder, name)
    Store(folder).put("train/cat/1.png", b"x")
    assert set(Store(folder).files()) == {"train/cat/1.png"}


@pytest.mark.parametrize("name", ["../secret", "a//b"])
def test_a_name_that_leaves_the_folder_is_an_error(folder: str, name: str) -> None:
    put_object(folder, name)
    with pytest.raises(StorageError, match="give the URL of a folder whose files a disk can have"):
        Store(folder).files()


def test_what_a_person_can_correct_is_not_tried_again(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Store("s3://no-such/run")
    for act in (missing.files, lambda: missing.put("a", b"x")):
        with pytest.raises(StorageError, match="The specified bucket does not exist") as caught:
            act()
        assert not isinstance(caught.value, StorageFault)
    with server(INITIAL_NO_AUTH_ACTION_COUNT="0") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(StorageError, match="check the credentials") as caught:
            Store("s3://bucket/run").files()
        assert not isinstance(caught.value, StorageFault)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(UserError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        Store("s3://bucket/run").files()


def test_a_wrong_clock_is_not_blamed_on_the_credentials() -> None:
    answer = "status code: 403 <Code>RequestTimeTooSkewed</Code><Message>It is 5 h</Message>"
    with (
        pytest.raises(StorageError, match="put s3://b: It is 5 h; set the clock of this"),
        remote._explained("put", "s3://b"),
    ):
        raise RuntimeError(answer)


def test_the_profile_of_aws_s_own_tools_is_used(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(
        "[mine]\naws_access_key_id = us\naws_secret_access_key = er\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    Store(folder).put("one", b"1")
    assert Store(folder).read("one") == b"1"


def test_a_server_that_does_not_answer_is_a_passing_fault(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StorageFault, match="cannot list s3://bucket/run: "):
        Store("s3://bucket/run").files()
    with google_server() as (url, _):
        pass  # it is closed now
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", key_of(url))
    with pytest.raises(StorageFault, match="cannot list gs://bucket/run: "):
        Store("gs://bucket/run").files()


def test_a_missing_extra_and_an_unknown_protocol_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="Protocol not known: nonsense; use s3://"):
        open_to_read("nonsense://bucket/run").files()
    with pytest.raises(UserError, match="cannot be a run folder; give a path, or a URL"):
        open_to_write("hdfs://host/folder")
    assert isinstance(open_to_read("hdfs://host/folder"), ReadOnlyFolder)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UserError, match=r"install the extra gs: pip install 'paceline\[gs\]'"):
        Store("gs://bucket/run").files()
