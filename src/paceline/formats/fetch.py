"""Download archives, such as public data sets, check and unpack them. No TensorFlow.

The work is done in a temporary folder, which gets its final name at the end.
"""

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from paceline.errors import UserError
from paceline.formats.cifar import LAYOUTS, check_complete
from paceline.storage.files import to_log
from paceline.storage.progress_bar import late_bar

OFFICIAL_URL = "https://www.cs.toronto.edu/~kriz/"
CHUNK_BYTES = 1 << 18
ARCHIVES = {
    "cifar10": ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}
"""A file with the binary layout at the official address, and its published md5."""


def fetch(
    name: str, folder: str | Path, base_url: str = OFFICIAL_URL, timeout_s: float = 30
) -> Path:
    """Download, check and unpack a data set into `folder`, unless it is there; return where."""
    archive, md5 = ARCHIVES[name]
    layout = next(layout for layout in LAYOUTS if layout.source == name and layout.label_bytes)
    target = Path(folder).expanduser() / layout.folder
    if target.exists():
        check_complete(layout, target, "remove it and fetch again")
        to_log(f"{name} is already in {target}")
        return target
    fetch_archive(f"{base_url.rstrip('/')}/{archive}", md5, target, timeout_s)
    to_log(f"{name} is in {target}")
    return target


def fetch_archive(url: str, digest: str, target: Path, timeout_s: float = 30) -> None:
    """Download an archive, check its md5 or SHA-256, and unpack the folder of `target`'s name."""
    parent = target.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=".fetch-") as temporary:
            file = Path(temporary, url.rpartition("/")[2])
            _download(url, file, digest, timeout_s)
            with tarfile.open(file) as unpacked:  # the digest tells that it can be trusted
                unpacked.extractall(temporary, filter="data")
            os.rename(Path(temporary, target.name), target)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        advice = f"try again, or download it elsewhere and unpack it into {parent}"
        raise UserError(f"cannot fetch {url}: {reason}; {advice}") from error


def _download(url: str, file: Path, digest: str, timeout_s: float) -> None:
    kind = "md5" if len(digest) == 32 else "sha256"
    found = hashlib.new(kind, usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=timeout_s) as response, file.open("wb") as out:
        total = int(response.headers.get("Content-Length") or 0)
        with late_bar(f"downloading {file.name}", total) as advance:
            while chunk := response.read(CHUNK_BYTES):
                out.write(chunk)
                found.update(chunk)
                advance(len(chunk))
        received = out.tell()
    if received < total or found.hexdigest() != digest:
        given = f"{received:,} of {total:,} bytes with the {kind} {found.hexdigest()}"
        raise UserError(f"{url} gave {given}, not the published {digest}; try again")
