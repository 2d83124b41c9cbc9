"""The index of a folder of TFRecords: where every record begins, built once and kept in a file.

It owns the index file, beside the data or in the cache, and decides when it still fits: a shard's
part is valid for the shard's name, size and time of change. A plain index needs the lengths only.
A *scanned* index has read every record: it has the labels and the damaged records. No TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import google_crc32c
import numpy as np
from rich.console import Console

from paceline.errors import UserError
from paceline.formats.tfrecord.keys import parse_example
from paceline.formats.tfrecord.records import (
    FRAME_BYTES,
    BadRecord,
    Shard,
    find_offsets,
    is_gzip,
    read_all,
    read_length,
    unpack_gzip,
)
from paceline.storage.backends import cache_folder
from paceline.storage.files import explained, replacing
from paceline.storage.progress_bar import late_bar

SAVE_EVERY_S = 5.0
FILE_NAME = ".paceline-index"
MAGIC = b"PACEIDX1"
_PREFIX = struct.Struct("<8sII")
"""Magic bytes, the CRC-32C of all that follows it, and the length of the JSON header. Offsets and
labels follow the header."""


@dataclass(frozen=True)
class ShardIndex:
    """The good records of one shard: offsets int64 [n]. If it was scanned: labels int32 [n], the
    faults (offset, reason), and the keys of image and label."""

    shard: Shard
    offsets: np.ndarray
    labels: np.ndarray | None = None
    faults: tuple[tuple[int, str], ...] = ()
    keys: tuple[str, str] | None = None


def load_index(
    folder: str,
    shards: Sequence[Shard],
    keys: tuple[str, str] | None = None,
    skip_bad: bool = False,
    console: Console | None = None,
) -> list[ShardIndex]:
    """Return an index of each shard, from the index file where that fits. With the `keys` of image
    and label it is a scanned one. Damage is an error, or left out with `skip_bad`."""
    known = {part.shard.name: part for part in _read_known(folder)}
    unpacked = [unpacked_shard(shard, skip_bad) for shard in shards]
    parts = {shard: _fitting(known.get(shard.name), shard, keys) for shard in unpacked}
    missing = [shard for shard, part in parts.items() if part is None]
    if missing:
        _build(missing, parts, keys, skip_bad, console, partial(_save_built, folder))
    whole = [part for part in parts.values() if part is not None]
    if missing:
        _save(folder, whole)
    for part in whole:
        if part.faults and not skip_bad:
            raise BadRecord(part.shard.path, *part.faults[0])
    return whole


def pack(parts: Sequence[ShardIndex]) -> bytes:
    """Return the content of an index file."""
    header = [
        {
            "shard": part.shard,
            "records": len(part.offsets),
            "scanned": part.labels is not None,
            "keys": part.keys,
            "faults": part.faults,
        }
        for part in parts
    ]
    text = json.dumps(header).encode()
    tail = [struct.pack("<I", len(text)), text]
    for part in parts:
        tail.append(part.offsets.astype("<i8").tobytes())
        if part.labels is not None:
            tail.append(part.labels.astype("<i4").tobytes())
    body = b"".join(tail)
    return MAGIC + struct.pack("<I", google_crc32c.value(body)) + body


def unpack(content: bytes) -> list[ShardIndex]:
    """Return the parts in an index file. Raise ValueError if one bit differs from `pack`'s."""
    if len(content) < _PREFIX.size:
        raise ValueError("it is cut short")
    magic, crc, length = _PREFIX.unpack_from(content)
    if magic != MAGIC or google_crc32c.value(content[12:]) != crc:
        raise ValueError("it is damaged, or of another version")
    place, parts = _PREFIX.size + length, list[ShardIndex]()
    for entry in json.loads(content[_PREFIX.size : place]):
        count, labels = entry["records"], None
        offsets = np.frombuffer(content, "<i8", count, place)
        place += 8 * count
        if entry["scanned"]:
            labels = np.frombuffer(content, "<i4", count, place)
            place += 4 * count
        faults = tuple((offset, reason) for offset, reason in entry["faults"])
        keys = tuple(entry["keys"]) if entry["keys"] else None
        parts.append(ShardIndex(Shard(*entry["shard"]), offsets, labels, faults, keys))
    return parts


def _build(
    missing: list[Shard],
    parts: dict[Shard, ShardIndex | None],
    keys: tuple[str, str] | None,
    skip_bad: bool,
    console: Console | None,
    save: Callable[[dict[Shard, ShardIndex | None]], None],
) -> None:
    """Add the index of each missing shard to `parts`, and save what is there now and then: if
    this process ends, the next one continues."""
    total, saved = sum(shard.size for shard in missing), time.monotonic()
    with late_bar("reading records" if keys else "indexing records", total, console) as advance:
        for shard in missing:
            with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
                if keys:
                    parts[shard] = _scan(shard, file, keys, skip_bad, advance)
                else:
                    offsets = find_offsets(file, shard.path, shard.size, advance)
                    parts[shard] = ShardIndex(shard, offsets)
            if time.monotonic() - saved > SAVE_EVERY_S:
                save(parts)
                saved = time.monotonic()


def _save_built(folder: str, parts: dict[Shard, ShardIndex | None]) -> None:
    _save(folder, [part for part in parts.values() if part is not None])


def _scan(
    shard: Shard,
    file: IO[bytes],
    keys: tuple[str, str],
    skip_bad: bool,
    advance: Callable[[int], None],
) -> ShardIndex:
    offsets, labels, faults = [], [], []
    for offset, data in read_all(file, shard.path, shard.size, advance):
        try:
            if isinstance(data, BadRecord):
                raise ValueError(data.reason)
            label = parse_example(data, *keys)[1]
        except ValueError as error:
            if not skip_bad:
                raise BadRecord(shard.path, offset, str(error)) from None
            faults.append((offset, str(error)))
        else:
            offsets.append(offset)
            labels.append(max(-(2**31), min(label, 2**31 - 1)))
    numbers = np.array(offsets, np.int64), np.array(labels, np.int32)
    return ShardIndex(shard, *numbers, tuple(faults), keys)


def _fitting(
    part: ShardIndex | None, shard: Shard, keys: tuple[str, str] | None
) -> ShardIndex | None:
    """Return `part` if it belongs to this very file and has the keys. The last record is compared
    with the file."""
    if part is None or part.shard[1:] != shard[1:] or (keys is not None and part.keys != keys):
        return None
    if len(part.offsets):
        last = int(part.offsets[-1])
        try:
            with open(shard.path, "rb") as file:
                end = last + FRAME_BYTES + read_length(file, shard.path, last, shard.size)
        except (UserError, OSError):
            return None
        if end != shard.size and not part.faults:
            return None
    return dataclasses.replace(part, shard=shard)


def unpacked_shard(shard: Shard, keep_partial: bool) -> Shard:
    """Return the shard itself, or if it is gzip data, its unpacked copy in the cache."""
    with explained("read or unpack", Path(shard.path)), open(shard.path, "rb") as file:
        if not is_gzip(file):
            return shard
        name = f"{shard.path} {shard.size} {shard.stamp} {keep_partial}"
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        target = cache_folder() / "unpacked" / f"{key}-{shard.name.removesuffix('.gz')}"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            unpack_gzip(file, shard.path, target, keep_partial)
        size = target.stat().st_size
    return Shard(str(target), shard.name, size, f"{shard.size} {shard.stamp}")


@contextlib.contextmanager
def original_names(folder: str) -> Iterator[None]:
    """In an error about a record of an unpacked copy, name the file that was unpacked."""
    try:
        yield
    except BadRecord as bad:
        path = Path(bad.file)
        if path.parent != cache_folder() / "unpacked":
            raise
        name = path.name.partition("-")[2]
        packed = (file for file in (f"{name}.gz", name) if Path(folder, file).exists())
        file = str(Path(folder, next(packed, name)))
        raise BadRecord(file, bad.offset, f"(unpacked) {bad.reason}") from bad


def _places(folder: str) -> list[Path]:
    """Return where an index may be: beside the data first, then in the cache."""
    name = "index-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return [Path(folder, FILE_NAME), cache_folder() / name]


def _read_known(folder: str) -> list[ShardIndex]:
    """Return the first index that can be read. A damaged one is not reported: it is built again."""
    for place in _places(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return unpack(place.read_bytes())
    return []


def _save(folder: str, parts: list[ShardIndex]) -> None:
    """Write the index to the first place that allows it; if none does, it stays in memory."""
    content = pack(parts)
    for place in _places(folder):
        with contextlib.suppress(OSError):
            if place.parent != Path(folder):
                place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as file:
                file.write(content)
            return
