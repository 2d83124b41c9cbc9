"""Copies of remote data sets in the cache."""

import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.storage import cache
from paceline.storage.locations import local_folder
from paceline.storage.remote import ReadOnlyFolder, Store


def bring(folder: str) -> Path:
    """Copy the data as a new process would."""
    cache._ready.clear()
    return Path(local_folder(folder))


def contents(copy: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in copy.glob("class/*")}


def put(folder: str, count: int) -> dict[str, bytes]:
    files = {f"{number}.png": bytes([number]) for number in range(count)}
    for name, content in files.items():
        Store(folder).put(f"class/{name}", content)
    return files


def test_a_copy_is_made_once_and_continues_after_an_error(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, fetched, get, cut = put(folder, 40), list[str](), Store.get, True

    def counting(store: Store, name: str, target: Path, advance: Any) -> bool:
        if len(fetched) == 25 and cut:
            raise OSError("the line is cut")
        fetched.append(name)
        return get(store, name, target, advance)

    monkeypatch.setattr(Store, "get", counting)
    with pytest.raises(OSError, match="the line is cut"):
        bring(folder)
    cut = False
    assert contents(bring(folder)) == files
    assert contents(bring(folder)) == files
    assert len(fetched) == 40  # none of them twice
    used = bring(folder)
    Store(folder).put("class/3.png", b"new")
    assert contents(bring(folder)) == files | {"3.png": b"new"}
    assert contents(used) == files, "a training may still read it"


def test_what_cannot_be_copied_is_reported(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="there is nothing in"):
        bring(folder)
    put(folder, 2)
    monkeypatch.setattr(Store, "get", lambda *arguments: False)
    with pytest.raises(UserError, match=r"\.png changed while it was copied; run the same"):
        bring(folder)
    usage = type("Usage", (), {"free": 1})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="set PACELINE_CACHE to a folder on a larger disk"):
        bring(folder)


def test_other_storage_is_read_through_fsspec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data" / "class").mkdir(parents=True)
    (tmp_path / "data" / "class" / "0.png").write_bytes(b"x")
    assert contents(bring(f"local://{tmp_path}/data")) == {"0.png": b"x"}
    with pytest.raises(UserError, match="cannot be a run folder; give a path, or a URL"):
        cache.put_folder(tmp_path / "data", f"local://{tmp_path}/out", "last")


def test_a_folder_of_a_web_server_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages name the files without their sizes."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data" / "class").mkdir(parents=True)
    (tmp_path / "data" / "class" / "0.png").write_bytes(b"x")
    handler = partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/data"
        assert contents(bring(url)) == {"0.png": b"x"}
        server.shutdown()
    with pytest.raises(UserError, match=f"cannot list {url}: "):
        ReadOnlyFolder(url).files()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Print nothing."""
