"""The index of a folder of shards: the offset of every record, built once and kept in a file.

It owns the index file, next to the data or in the cache, and decides whether it still fits: it is
valid for the names, sizes and times of change of all shards. A plain index of TFRecords reads only
the lengths of records. A *scanned* index, as of tars, has the labels and the damaged records.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.data.digests import SAMPLES, digest_of, spread
from paceline.formats.tfrecord.record import (
    FOOTER_BYTES,
    HEADER_BYTES,
    BadRecord,
    Shard,
    find_offsets,
    parse_label,
    read_all,
    read_length,
    read_record,
)
from paceline.storage.array_files import parse_npz, read_exactly
from paceline.storage.files import explained, replacing
from paceline.storage.locations import cache_folder
from paceline.storage.progress_bar import late_bar

FILE_NAME = ".paceline-index.npz"
COLUMNS = ("offsets", "labels", "lengths")
MOST_TEXTS = 100_000
"""Labels whose texts are kept."""


class ShardIndex(NamedTuple):
    """The good records of one shard: offsets int64 [n]. If it was scanned: labels int32 [n] and
    the faults (offset, reason), and the texts of the labels from 0 on. In a tar, a record is the
    bytes of an image, so it has lengths int64 [n]."""

    shard: Shard
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32] = np.zeros(0, np.int32)
    faults: Sequence[tuple[int, str]] = ()
    names: Sequence[str] = ()
    lengths: npt.NDArray[np.int64] = np.zeros(0, np.int64)


def load_index(
    folder: str,
    shards: Sequence[Shard],
    keys: tuple[str, ...] | None = None,
    skip_bad: bool = False,
    scan: Callable[[Shard], ShardIndex] | None = None,
) -> list[ShardIndex]:
    """Return an index of each shard, from the index file if it fits. With the `keys` of image and
    label it is a scanned one. Damage is an error, or left out with `skip_bad`. `scan` indexes a
    shard that is not of TFRecords; `keys` then identify it."""
    names = [os.path.relpath(shard.path, folder) for shard in shards]
    stamps = [(name, *shard[1:]) for name, shard in zip(names, shards, strict=True)]
    identity = json.dumps([keys, stamps]).encode()
    parts = _from_arrays(shards, read_known(folder, identity))
    if not parts:
        total = sum(shard.size for shard in shards)
        with late_bar("reading" if keys else "indexing", total) as advance:
            for shard in shards:
                parts.append(scan(shard) if scan else _index_shard(shard, keys))
                advance(shard.size)
        save_known(folder, identity, _to_arrays(parts))
    for part in parts:
        if part.faults and not skip_bad:
            raise BadRecord(part.shard.path, *part.faults[0])
    return parts


def records_digest(parts: Sequence[ShardIndex]) -> str:
    """Return the digest of an index, and of the checksums of some records."""
    pieces, checksums = [], []
    each = max(1, SAMPLES // max(1, len(parts)))
    for part in parts:
        shard, offsets = part.shard, part.offsets
        pieces.append(f"{shard.size} {len(offsets)}".encode())
        pieces.append(np.ascontiguousarray(offsets, "<i8").tobytes())
        if len(part.lengths):  # TFRecords have their labels in themselves
            pieces += [part.lengths.astype("<i8").tobytes(), part.labels.astype("<i4").tobytes()]
        with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
            for number in spread(len(offsets), each) if len(offsets) else ():
                offset = int(offsets[number])
                if len(part.lengths):
                    checksums.append(read_range(file, offset, int(part.lengths[number])))
                    continue
                length = read_length(file, shard.path, offset, shard.size)
                file.seek(offset + HEADER_BYTES + length)
                checksums.append(file.read(FOOTER_BYTES))
    return digest_of([*pieces, *checksums])


def read_shard(shard: Shard) -> Iterator[tuple[int, bytes | BadRecord]]:
    """Yield every record of a shard with its offset, and a `BadRecord` in place of a bad one."""
    with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
        yield from read_all(file, shard.path, shard.size)


def read_at(shard: Shard, offset: int) -> bytes:
    """Return the data of one record."""
    with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
        return read_record(file, shard.path, offset, shard.size)


def read_range(file: IO[bytes], offset: int, length: int) -> bytes:
    """Return some bytes of a file; raise OSError if it is shorter."""
    file.seek(offset)
    return read_exactly(file, length)


def _index_shard(shard: Shard, keys: tuple[str, ...] | None) -> ShardIndex:
    if keys is None:
        with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
            return ShardIndex(shard, find_offsets(file, shard.path, shard.size))
    offsets, labels, faults = [], [], []
    texts: dict[int, str] = {}
    for offset, data in read_shard(shard):
        try:
            if isinstance(data, BadRecord):
                raise ValueError(data.reason)
            label, text = parse_label(data, keys[0], keys[1])
        except ValueError as error:
            faults.append((offset, str(error)))
        else:
            offsets.append(offset)
            labels.append(max(-(2**31), min(label, 2**31 - 1)))
            if text and 0 <= label < MOST_TEXTS:
                texts.setdefault(label, text)
    names = [texts.get(label, "") for label in range(max(texts, default=-1) + 1)]
    found = np.array(offsets, np.int64), np.array(labels, np.int32), faults
    return ShardIndex(shard, *found, names)


def _index_files(folder: str) -> list[Path]:
    """Return where an index may be: next to the data first, then in the cache."""
    name = f"index-{hashlib.sha256(folder.encode()).hexdigest()[:16]}.npz"
    return [Path(folder, FILE_NAME), cache_folder() / name]


def read_known(folder: str, identity: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of the first file that fits. A damaged one is silently built again."""
    for path in _index_files(folder):
        with contextlib.suppress(OSError, ValueError, KeyError):
            arrays = parse_npz(path.read_bytes())
            if arrays["identity"].tobytes() == identity:
                return arrays
    return {}


def save_known(folder: str, identity: bytes, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write the arrays where that is allowed; if it is nowhere, they stay in memory."""
    for path in _index_files(folder):
        with contextlib.suppress(OSError):
            if path.parent != Path(folder):
                path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                own = {"identity": np.frombuffer(identity, np.uint8), **arrays}
                np.savez(file, **own)  # type: ignore[arg-type]
            return


def _from_arrays(shards: Sequence[Shard], arrays: dict[str, npt.NDArray[Any]]) -> list[ShardIndex]:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        ends = np.cumsum(arrays["counts"])[:-1]
        columns = [np.split(arrays[name], ends) for name in COLUMNS]
        texts = json.loads(arrays["texts"].tobytes())
        parts = zip(shards, *columns, texts, strict=True)
        return [
            ShardIndex(shard, offsets, labels, [(at, why) for at, why in faults], names, lengths)
            for shard, offsets, labels, lengths, (faults, names) in parts
        ]
    return []


def _to_arrays(parts: Sequence[ShardIndex]) -> dict[str, npt.NDArray[Any]]:
    texts = json.dumps([(part.faults, part.names) for part in parts]).encode()
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    counts = np.array([len(part.offsets) for part in parts])
    return {"counts": counts, "texts": np.frombuffer(texts, np.uint8), **columns}
