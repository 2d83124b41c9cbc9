"""Digests of data sets: whether a resumed run, or another worker, has the same data.

What is in memory is digested whole. Of files, the list of all examples is digested, and the content
of some examples from one end to the other. No TensorFlow.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from paceline.formats.tfrecord.index import ShardIndex
from paceline.formats.tfrecord.records import FOOTER_BYTES, HEADER_BYTES, read_length
from paceline.storage.files import explained

SAMPLES = 64
PARALLEL_STATS = 16
"""Servers of network file systems answer several questions at a time."""


def spread(size: int, count: int = SAMPLES) -> list[int]:
    """Return up to `count` places from the first to the last of `size`."""
    return sorted({place * (size - 1) // max(1, count - 1) for place in range(count)})


def digest_of(pieces: Iterable[bytes]) -> str:
    """Return a short digest; where one piece ends and the next begins matters."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.hexdigest()[:16]


def arrays_digest(*arrays: np.ndarray) -> str:
    """Return the digest of whole arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def records_digest(parts: Sequence[ShardIndex]) -> str:
    """Return the digest of an index, and of the checksums of some records."""

    def pieces() -> Iterable[bytes]:
        for part in parts:
            yield f"{part.shard.size} {len(part.offsets)}".encode()
            yield np.ascontiguousarray(part.offsets, "<i8").tobytes()
        each = max(1, SAMPLES // max(1, len(parts)))
        for part in parts:
            if len(part.offsets):
                yield from _checksums(part, spread(len(part.offsets), each))

    return digest_of(pieces())


def _checksums(part: ShardIndex, places: list[int]) -> Iterable[bytes]:
    path, size = part.shard.path, part.shard.size
    with explained("read", Path(path)), open(path, "rb") as file:
        for offset in part.offsets[places].tolist():
            length = read_length(file, path, offset, size)
            file.seek(offset + HEADER_BYTES + length)
            yield file.read(FOOTER_BYTES)


def files_digest(root: Path, files: Sequence[tuple[str, int]]) -> str:
    """Return the digest of paths and labels, and of the content of some files.

    Run folders compare it, so it stays as it is; `sizes_digest` came later.
    """

    def pieces() -> Iterable[bytes]:
        for path, label in files:
            yield f"{label} {path}".encode(errors="surrogateescape")
        for place in spread(len(files)):
            file = root / files[place][0]
            with explained("read", file):
                yield file.read_bytes()

    return digest_of(pieces())


def sizes_digest(root: Path, files: Sequence[tuple[str, int]]) -> str:
    """Return the digest of the sizes of all files, in their order."""

    def sizes_of(part: int) -> list[int]:
        with explained("read", root):
            return [
                os.stat(os.path.join(root, path)).st_size
                for path, _ in files[bounds[part] : bounds[part + 1]]
            ]

    bounds = [len(files) * part // PARALLEL_STATS for part in range(PARALLEL_STATS + 1)]
    with ThreadPoolExecutor(PARALLEL_STATS) as pool:
        sizes = [size for each in pool.map(sizes_of, range(PARALLEL_STATS)) for size in each]
    return arrays_digest(np.array(sizes, np.int64))
