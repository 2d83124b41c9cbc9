"""Downloads, against a real server on this machine."""

import hashlib
import http.server
import io
import subprocess
import sys
import tarfile
import threading

import numpy as np
import pytest
from rich.console import Console

from paceline.errors import UserError
from paceline.formats import fetch as fetch_module
from paceline.formats.fetch import Archive, fetch

FILES = [
    *(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
    "batches.meta.txt",
]


def make_archive(names=tuple(FILES), folder="cifar-10-batches-bin/"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in names:
            content = np.random.default_rng(0).bytes(3073)
            member = tarfile.TarInfo(folder + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def server():
    """Serve `server.content` under every name; end the connection after `server.sent` bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.requests.append(self.path)
            if server.content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(server.content)))
            self.end_headers()
            self.wfile.write(server.content[: server.sent])

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.content, server.sent = [], make_archive(), None
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def serve(server, monkeypatch):
    def set_content(content):
        server.content = content
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(
            fetch_module.ARCHIVES, "cifar10", Archive("cifar-10-binary.tar.gz", md5)
        )

    set_content(server.content)
    return set_content


def quiet():
    return Console(file=io.StringIO(), width=200)


def test_an_archive_is_fetched_checked_and_unpacked(server, serve, tmp_path):
    console = quiet()
    target = fetch("cifar10", tmp_path / "new", server.url, console=console)
    assert target == tmp_path / "new" / "cifar-10-batches-bin"
    assert sorted(file.name for file in target.iterdir()) == sorted(FILES)
    assert [entry.name for entry in target.parent.iterdir()] == [target.name]
    assert server.requests == ["/cifar-10-binary.tar.gz"]
    assert f"cifar10 is in {target}" in console.file.getvalue()


def test_what_is_there_is_not_fetched_again(server, serve, tmp_path):
    fetch("cifar10", tmp_path, server.url, console=quiet())
    console = quiet()
    fetch("cifar10", tmp_path, server.url, console=console)
    assert len(server.requests) == 1
    assert "already" in console.file.getvalue()


def test_a_folder_that_lacks_a_file_is_not_taken_for_the_data(server, serve, tmp_path):
    target = fetch("cifar10", tmp_path, server.url, console=quiet())
    (target / "data_batch_3.bin").unlink()
    with pytest.raises(UserError, match=r"has no data_batch_3\.bin; remove it and fetch again"):
        fetch("cifar10", tmp_path, server.url, console=quiet())


def test_a_download_that_ends_half_way_leaves_nothing(server, serve, tmp_path):
    server.sent = len(server.content) // 2
    with pytest.raises(UserError, match=r"ended after .* of .* bytes; try again"):
        fetch("cifar10", tmp_path, server.url, console=quiet())
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing(server, serve, tmp_path, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch_module, "unpack_archive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch("cifar10", tmp_path, server.url, console=quiet())
    assert list(tmp_path.iterdir()) == []


def test_other_bytes_than_the_published_are_not_kept(server, tmp_path):
    with pytest.raises(UserError, match="not the published c32a1d4ab5d03f1284b67883e8d87530"):
        fetch("cifar10", tmp_path, server.url, console=quiet())
    assert list(tmp_path.iterdir()) == []


def test_an_archive_cannot_write_outside_its_folder(server, serve, tmp_path):
    serve(make_archive(("escaped",), folder="../../"))
    with pytest.raises(UserError, match="cannot be unpacked"):
        fetch("cifar10", tmp_path / "inner", server.url, console=quiet())
    assert [entry.name for entry in tmp_path.rglob("*")] == ["inner"]


def test_an_archive_of_something_else_is_refused(server, serve, tmp_path):
    serve(make_archive(FILES[1:]))
    with pytest.raises(UserError, match=r"has no data_batch_1\.bin"):
        fetch("cifar10", tmp_path, server.url, console=quiet())
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_one_line_that_says_what_to_do(server, tmp_path):
    server.content = None
    for url in (server.url, "http://127.0.0.1:9"):
        with pytest.raises(
            UserError,
            match=r"cannot fetch http.*try again, or download it elsewhere and unpack it into",
        ) as caught:
            fetch("cifar10", tmp_path, url, timeout_s=2, console=quiet())
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        fetch("cifar1O", tmp_path)


def test_fetching_saving_and_detecting_need_no_tensorflow():
    code = (
        "import sys, paceline.data.build, paceline.formats.fetch, paceline.formats.detect; "
        "import paceline.formats.arrays, paceline.data.shapes; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
