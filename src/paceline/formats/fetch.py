"""Download public data sets from their authors' address, check and unpack them. No TensorFlow.

Nothing half-written ever has its final name: the work is done in a temporary folder next to it,
which is renamed at the end.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paceline.errors import UserError, did_you_mean
from paceline.formats.cifar import LAYOUTS, Layout, check_complete
from paceline.storage.progress_bar import late_bar

OFFICIAL_URL = "https://www.cs.toronto.edu/~kriz/"
CHUNK_BYTES = 1 << 18
MOST_UNPACKED_BYTES = 1 << 30
"""Both data sets have less than 200 MB."""


@dataclass(frozen=True)
class Archive:
    """A file at the official address and its published md5. It has the binary layout."""

    file: str
    md5: str


ARCHIVES = {
    "cifar10": Archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": Archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}


def fetch(
    name: str,
    folder: str | Path,
    base_url: str = OFFICIAL_URL,
    timeout_s: float = 30,
    console: Console | None = None,
) -> Path:
    """Download, check and unpack a data set into `folder`, unless it is there. Return the folder of
    its files."""
    if name not in ARCHIVES:
        hint = did_you_mean(name, sorted(ARCHIVES))
        raise UserError(f"there is no data set {name!r} to fetch; {hint}")
    console, archive = console or Console(stderr=True), ARCHIVES[name]
    layout = next(layout for layout in LAYOUTS if layout.source == name and layout.label_bytes)
    parent = Path(folder).expanduser()
    target = parent / layout.folder
    if target.exists():
        check_complete(layout, target, "remove it and fetch again")
        console.print(f"{name} is already in {target}", soft_wrap=True)
        return target
    url = base_url.rstrip("/") + "/" + archive.file
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=".fetch-") as temporary:
            file = Path(temporary, archive.file)
            _download(url, file, archive.md5, timeout_s, console)
            os.rename(unpack_archive(file, layout), target)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        advice = f"try again, or download it elsewhere and unpack it into {parent}"
        raise UserError(f"cannot fetch {url}: {reason}; {advice}") from error
    console.print(f"{name} is in {target}", soft_wrap=True)
    return target


def _download(url: str, file: Path, md5: str, timeout_s: float, console: Console) -> None:
    digest, received = hashlib.md5(usedforsecurity=False), 0
    with urllib.request.urlopen(url, timeout=timeout_s) as response, file.open("wb") as out:
        total = int(response.headers.get("Content-Length") or 0)
        with late_bar(f"downloading {file.name}", total, console) as advance:
            while chunk := response.read(CHUNK_BYTES):
                out.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                advance(len(chunk))
    if received < total:
        counts = f"{received:,} of {total:,} bytes"
        raise UserError(f"the connection to {url} ended after {counts}; try again")
    if digest.hexdigest() != md5:
        found = f"{url} has md5 {digest.hexdigest()}, not the published {md5}"
        raise UserError(f"{found}; it was not kept: try again")


def unpack_archive(file: Path, layout: Layout) -> Path:
    """Unpack an archive next to itself; return the folder of the layout's files."""
    try:
        with tarfile.open(file) as archive:
            members = archive.getmembers()
            if sum(max(0, member.size) for member in members) > MOST_UNPACKED_BYTES:
                raise UserError(f"{file.name} is not the data set that was expected: too large")
            archive.extractall(file.parent, members, filter="data")
    except UserError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"{file.name} cannot be unpacked: {reason}") from error
    check_complete(layout, file.parent / layout.folder, "it is not the data set that was expected")
    return file.parent / layout.folder
