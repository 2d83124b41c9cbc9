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
from paceline.formats.fetch import fetch

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
        monkeypatch.setitem(fetch_module.ARCHIVES, "cifar10", ("cifar-10-binary.tar.gz", md5))

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


def test_what_is_there_is_not_fetched_again_unless_it_lacks_a_file(server, serve, tmp_path):
    fetch("cifar10", tmp_path, server.url, console=quiet())
    console = quiet()
    target = fetch("cifar10", tmp_path, server.url, console=console)
    assert len(server.requests) == 1
    assert "already" in console.file.getvalue()
    (target / "data_batch_3.bin").unlink()
    with pytest.raises(UserError, match=r"has no data_batch_3\.bin; remove it and fetch again"):
        fetch("cifar10", tmp_path, server.url, console=quiet())


def end_half_way(server, serve):
    server.sent = len(server.content) // 2


def send_other_bytes(server, serve):
    server.content += b"x"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (end_half_way, r"gave .* of .* bytes with the md5 .*; try again"),
        (send_other_bytes, "md5 .*, not the published"),
    ],
)
def test_a_bad_download_leaves_nothing(server, serve, tmp_path, spoil, words):
    spoil(server, serve)
    with pytest.raises(UserError, match=words):
        fetch("cifar10", tmp_path / "inner", server.url, console=quiet())
    assert [entry.name for entry in tmp_path.rglob("*")] == ["inner"]


def test_an_interruption_leaves_nothing(server, serve, tmp_path, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch_module.tarfile, "open", interrupt)
    with pytest.raises(KeyboardInterrupt):
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
        "import sys, paceline.data.build_source, paceline.formats.fetch, paceline.formats.detect; "
        "import paceline.formats.arrays, paceline.data.shapes; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
