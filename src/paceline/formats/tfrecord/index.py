"""The index of a folder of TFRecords: the offset of every record, built once and kept in a file.

It owns the index file, next to the data or in the cache, and decides whether it still fits: a
shard's part is valid for the shard's name, size and time of change. A plain index reads only the
lengths of records. A *scanned* index has read every record: it has the labels and the damaged
records. No TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from rich.console import Console

from paceline.data.digests import SAMPLES, digest_of, spread
from paceline.formats.tfrecord.frames import (
    FOOTER_BYTES,
    HEADER_BYTES,
    BadRecord,
    Shard,
    find_offsets,
    is_gzip,
    read_all,
    read_length,
    unpack_gzip,
)
from paceline.formats.tfrecord.keys import parse_example
from paceline.storage.array_files import read_npz
from paceline.storage.files import explained, replacing
from paceline.storage.locations import cache_folder
from paceline.storage.progress_bar import late_bar

FILE_NAME = ".paceline-index.npz"


@dataclass(frozen=True)
class ShardIndex:
    """The good records of one shard: offsets int64 [n]. If it was scanned: labels int32 [n], the
    faults (offset, reason), and the keys of image and label."""

    shard: Shard
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32] | None = None
    faults: tuple[tuple[int, str], ...] = ()
    keys: tuple[str, str] | None = None


def load_index(
    folder: str,
    shards: Sequence[Shard],
    keys: tuple[str, str] | None = None,
    skip_bad: bool = False,
    console: Console | None = None,
) -> list[ShardIndex]:
    """Return an index of each shard, from the index file where it fits. With the `keys` of image
    and label it is a scanned one. Damage is an error, or left out with `skip_bad`."""
    known = {part.shard.name: part for part in _read_known(folder)}
    shards = [unpacked_shard(shard, skip_bad) for shard in shards]
    parts = {}
    for shard in shards:
        part = known.get(shard.name)
        if part and part.shard[2:] == shard[2:] and (keys is None or part.keys == keys):
            parts[shard] = dataclasses.replace(part, shard=shard)
    missing = [shard for shard in shards if shard not in parts]
    if missing:
        parts |= _build(missing, keys, skip_bad, console)
        _save(folder, list(parts.values()))
    for part in parts.values():
        if part.faults and not skip_bad:
            raise BadRecord(part.shard.given, *part.faults[0])
    return [parts[shard] for shard in shards]


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


def _checksums(part: ShardIndex, chosen: list[int]) -> Iterable[bytes]:
    shard = part.shard
    with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
        for offset in part.offsets[chosen].tolist():
            length = read_length(file, shard.given, offset, shard.size)
            file.seek(offset + HEADER_BYTES + length)
            yield file.read(FOOTER_BYTES)


def unpacked_shard(shard: Shard, keep_partial: bool) -> Shard:
    """Return the shard itself, or if it is gzip data, its unpacked copy in the cache."""
    with explained("read or unpack", Path(shard.path)), open(shard.path, "rb") as file:
        if not is_gzip(file):
            return shard
        name = f"{shard.path} {shard.size} {shard.stamp} {keep_partial}"
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        target = cache_folder() / "unpacked" / key / shard.name.removesuffix(".gz")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            unpack_gzip(file, shard.path, target, keep_partial)
        size = target.stat().st_size
    return Shard(str(target), shard.given, size, f"{shard.size} {shard.stamp}")


def _build(
    shards: list[Shard], keys: tuple[str, str] | None, skip_bad: bool, console: Console | None
) -> dict[Shard, ShardIndex]:
    what, total = "reading" if keys else "indexing", sum(shard.size for shard in shards)
    parts = {}
    with late_bar(f"{what} records", total, console) as advance:
        for shard in shards:
            with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
                if keys:
                    parts[shard] = _scan(shard, file, keys, skip_bad, advance)
                else:
                    offsets = find_offsets(file, shard.given, shard.size, advance)
                    parts[shard] = ShardIndex(shard, offsets)
    return parts


def _scan(
    shard: Shard,
    file: IO[bytes],
    keys: tuple[str, str],
    skip_bad: bool,
    advance: Callable[[int], None],
) -> ShardIndex:
    offsets, labels, faults = [], [], []
    for offset, data in read_all(file, shard.given, shard.size, advance):
        try:
            if isinstance(data, BadRecord):
                raise ValueError(data.reason)
            label = parse_example(data, *keys)[1]
        except ValueError as error:
            if not skip_bad:
                raise BadRecord(shard.given, offset, str(error)) from None
            faults.append((offset, str(error)))
        else:
            offsets.append(offset)
            labels.append(max(-(2**31), min(label, 2**31 - 1)))
    numbers = np.array(offsets, np.int64), np.array(labels, np.int32)
    return ShardIndex(shard, *numbers, tuple(faults), keys)


def _index_files(folder: str) -> list[Path]:
    """Return where an index may be: next to the data first, then in the cache."""
    name = f"index-{hashlib.sha256(folder.encode()).hexdigest()[:16]}.npz"
    return [Path(folder, FILE_NAME), cache_folder() / name]


def _read_known(folder: str) -> list[ShardIndex]:
    """Return the first index that can be read. A damaged one is not reported: it is built again."""
    for path in _index_files(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return _read_file(path)
    return []


def _read_file(path: Path) -> list[ShardIndex]:
    arrays = read_npz(path)
    offsets, labels = arrays["offsets"], arrays["labels"]
    parts = []
    for shard, count, keys, faults in json.loads(arrays["shards"].tobytes()):
        own, offsets = offsets[:count], offsets[count:]
        own_labels = None
        if keys:
            own_labels, labels = labels[:count], labels[count:]
        found = tuple((offset, reason) for offset, reason in faults)
        parts.append(ShardIndex(Shard(*shard), own, own_labels, found, tuple(keys or ()) or None))
    return parts


def _save(folder: str, parts: Sequence[ShardIndex]) -> None:
    """Write the index where that is allowed; if it is nowhere, the index stays in memory."""
    shards = json.dumps([(p.shard, len(p.offsets), p.keys, p.faults) for p in parts]).encode()
    header = np.frombuffer(shards, np.uint8)
    offsets = np.concatenate([part.offsets for part in parts])
    scanned = [part.labels for part in parts if part.labels is not None]
    labels = np.concatenate(scanned) if scanned else np.zeros(0, np.int32)
    for path in _index_files(folder):
        with contextlib.suppress(OSError):
            if path.parent != Path(folder):
                path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                np.savez(file, shards=header, offsets=offsets, labels=labels)
            return
