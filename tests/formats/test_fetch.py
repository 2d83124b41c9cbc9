"""Downloads: checked, complete or not there at all."""

import hashlib
import io
import subprocess
import sys
import tarfile
from contextlib import redirect_stderr

import pytest

from helpers import TIMEOUT_S
from paceline.errors import UserError
from paceline.formats import fetch as fetch_module
from paceline.formats.cifar import LAYOUTS
from paceline.formats.fetch import fetch

BINARY = LAYOUTS[0]


@pytest.fixture
def url(tmp_path_factory, monkeypatch):
    """Publish an archive of the right layout; return the URL of its folder."""
    folder = tmp_path_factory.mktemp("published")
    archive = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name in BINARY.files:
            member = tarfile.TarInfo(f"{BINARY.folder}/{name}")
            member.size = 3073
            packed.addfile(member, io.BytesIO(bytes(3073)))
    md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(fetch_module.ARCHIVES, "cifar10", (archive.name, md5))
    return folder.as_uri()


def fetch_quietly(folder, url):
    """Return the folder of the files, and what was printed."""
    with redirect_stderr(io.StringIO()) as said:
        target = fetch("cifar10", folder, url, timeout_s=2)
    return target, said.getvalue()


def test_an_archive_is_fetched_checked_and_unpacked_once(url, tmp_path):
    target, said = fetch_quietly(tmp_path / "new", url)
    assert target == tmp_path / "new" / "cifar-10-batches-bin"
    assert {file.name for file in target.iterdir()} == set(BINARY.files)
    assert [entry.name for entry in target.parent.iterdir()] == [target.name]
    assert f"cifar10 is in {target}" in said
    assert "already" in fetch_quietly(tmp_path / "new", "http://127.0.0.1:9")[1]
    (target / "data_batch_3.bin").unlink()
    with pytest.raises(UserError, match=r"has no data_batch_3\.bin; remove it and fetch again"):
        fetch_quietly(tmp_path / "new", url)


def test_a_bad_download_or_an_interruption_leaves_nothing(url, tmp_path, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch_module.tarfile, "open", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch_quietly(tmp_path, url)
    monkeypatch.setitem(fetch_module.ARCHIVES, "cifar10", ("cifar-10-binary.tar.gz", "0" * 32))
    with pytest.raises(UserError, match=r"gave .* bytes with the md5 .*, not the published"):
        fetch_quietly(tmp_path, url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", ["http://127.0.0.1:9", "file:///nowhere"])
def test_no_network_is_one_line_that_says_what_to_do(tmp_path, bad):
    with pytest.raises(UserError, match=r"cannot fetch .*try again, or download it") as caught:
        fetch_quietly(tmp_path, bad)
    assert "\n" not in str(caught.value)


def test_fetching_saving_and_detecting_need_no_tensorflow():
    code = (
        "import sys, paceline.data.build_source, paceline.formats.fetch, paceline.formats.detect; "
        "import paceline.formats.arrays, paceline.data.shapes; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT_S).returncode == 0
