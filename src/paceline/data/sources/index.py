"""The index of a folder of TFRecords: where every record begins, made once and kept beside the data, or in the cache.

It owns the index file and decides when it still fits: each shard's part is known by the shard's name, size and time of change,
and is made anew when one of them differs. A plain index needs the lengths only; a *scanned* one read every record, knows its
label and which records are damaged. No TensorFlow.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import google_crc32c
import numpy as np
from rich.console import Console

from paceline.data.sources import example
from paceline.data.sources.records import (
    FRAME_BYTES,
    BadRecord,
    Shard,
    find_offsets,
    is_gzip,
    read_all,
    read_length,
    unpack_gzip,
)
from paceline.data.tools.progress_bar import late_bar
from paceline.errors import UserError
from paceline.run_folder.folder import replacing
from paceline.run_folder.storage import cache_folder

FILE_NAME = ".paceline-index"
MAGIC = b"PACEIDX1"
_PREFIX = struct.Struct("<8sII")
"""Magic bytes, the CRC-32C of all that follows it, and the length of the JSON header, which the offsets and labels follow."""


@dataclass(frozen=True)
class ShardIndex:
    """The good records of one shard: offsets int64 [n]; if it was scanned, labels int32 [n] and the faults (offset, reason)."""

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
    """An index of each shard, from the index file where that fits. With `keys`, of picture and label, a scanned one. Damage is
    an error, or with `skip_bad` left out."""
    known = {part.shard.name: part for part in _read_known(folder)}
    unpacked = [unpacked_shard(shard, skip_bad) for shard in shards]
    parts = [_fitting(known.get(shard.name), shard, keys) for shard in unpacked]
    missing = [shard for shard, part in zip(unpacked, parts, strict=True) if part is None]
    if missing:
        made = _make(missing, keys, skip_bad, console)
        parts = [part or made[shard.name] for shard, part in zip(unpacked, parts, strict=True)]
        _keep(folder, [part for part in parts if part is not None])
    whole = [part for part in parts if part is not None]
    for part in whole:
        if part.faults and not skip_bad:
            raise BadRecord(part.shard.path, *part.faults[0])
    return whole


def pack(parts: Sequence[ShardIndex]) -> bytes:
    """The content of an index file."""
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
    arrays = [
        array
        for part in parts
        for array in (part.offsets.astype("<i8"), part.labels)
        if array is not None
    ]
    text = json.dumps(header).encode()
    body = b"".join(
        [text, *(np.asarray(array, array.dtype.newbyteorder("<")).tobytes() for array in arrays)]
    )
    tail = struct.pack("<I", len(text)) + body
    return MAGIC + struct.pack("<I", google_crc32c.value(tail)) + tail


def unpack(content: bytes) -> list[ShardIndex]:
    """The parts in an index file; ValueError if one bit of it is not as `pack` wrote it."""
    if len(content) < _PREFIX.size:
        raise ValueError("it is cut short")
    magic, crc, length = _PREFIX.unpack_from(content)
    if magic != MAGIC or google_crc32c.value(content[12:]) != crc:
        raise ValueError("it is damaged, or of another version")
    place, parts = _PREFIX.size + length, []
    for entry in json.loads(content[_PREFIX.size : place]):
        count, labels = entry["records"], None
        offsets = np.frombuffer(content, "<i8", count, place)
        place += 8 * count
        if entry["scanned"]:
            labels = np.frombuffer(content, "<i4", count, place)
            place += 4 * count
        faults = tuple((offset, reason) for offset, reason in entry["faults"])
        parts.append(
            ShardIndex(
                Shard(*entry["shard"]),
                offsets,
                labels,
                faults,
                tuple(entry["keys"]) if entry["keys"] else None,
            )
        )
    return parts


def judge(data: bytes, image_key: str, label_key: str) -> int | str:
    """The label of a record, or what is wrong with it."""
    try:
        features = example.decode(data)
    except ValueError as error:
        return f"a record is {error},"
    for key, kind in ((image_key, bytes), (label_key, int)):
        values = features.get(key, [])
        if len(values) != 1 or not isinstance(values[0], kind):
            found = f"{len(values)} values" if len(values) != 1 else f"a {type(values[0]).__name__}"
            names = ", ".join(sorted(features)[:12]) or "nothing"
            return f"a record has {found if key in features else 'no feature'} {key!r} (it has {names})"
    return int(features[label_key][0])


def _make(
    missing: list[Shard], keys: tuple[str, str] | None, skip_bad: bool, console: Console | None
) -> dict[str, ShardIndex]:
    made = {}
    with late_bar(
        "reading records" if keys else "indexing records",
        sum(shard.size for shard in missing),
        console,
    ) as advance:
        for shard in missing:
            with open(shard.path, "rb") as file:
                made[shard.name] = (
                    _scan(shard, file, keys, skip_bad, advance)
                    if keys
                    else _measure(shard, file, advance)
                )
    return made


def _measure(shard: Shard, file: IO[bytes], advance: Callable[[int], None]) -> ShardIndex:
    return ShardIndex(shard, find_offsets(file, shard.path, shard.size, advance))


def _scan(
    shard: Shard,
    file: IO[bytes],
    keys: tuple[str, str],
    skip_bad: bool,
    advance: Callable[[int], None],
) -> ShardIndex:
    offsets, labels, faults, reached = [], [], [], 0
    if shard.size == 0:
        faults.append((0, "the shard is empty (0 bytes): it ends"))
    for offset, data in read_all(file, shard.path, shard.size):
        advance(offset - reached)
        reached = offset
        found = data.reason if isinstance(data, BadRecord) else judge(data, *keys)
        if isinstance(found, str):
            faults.append((offset, found))
            if not skip_bad:
                raise BadRecord(shard.path, offset, found)
        else:
            offsets.append(offset)
            labels.append(max(-(2**31), min(found, 2**31 - 1)))
    return ShardIndex(
        shard, np.array(offsets, np.int64), np.array(labels, np.int32), tuple(faults), keys
    )


def _fitting(
    part: ShardIndex | None, shard: Shard, keys: tuple[str, str] | None
) -> ShardIndex | None:
    """`part`, if it is of this very file and knows enough; its last record is looked up in the file."""
    if part is None or part.shard[1:] != shard[1:] or (keys is not None and part.keys != keys):
        return None
    part = ShardIndex(shard, part.offsets, part.labels, part.faults, part.keys)
    if len(part.offsets):
        last = int(part.offsets[-1])
        try:
            with open(shard.path, "rb") as file:
                end = last + FRAME_BYTES + read_length(file, shard.path, last, shard.size)
        except (UserError, OSError):
            return None
        if end != shard.size and not part.faults:
            return None
    return part


def unpacked_shard(shard: Shard, keep_partial: bool) -> Shard:
    """The shard itself, or where its gzip data lie unpacked in the cache."""
    try:
        with open(shard.path, "rb") as file:
            if not is_gzip(file):
                return shard
            key = hashlib.sha256(
                f"{shard.path} {shard.size} {shard.stamp} {keep_partial}".encode()
            ).hexdigest()[:16]
            target = cache_folder() / "unpacked" / f"{key}-{shard.name.removesuffix('.gz')}"
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                unpack_gzip(file, shard.path, target, keep_partial)
    except OSError as error:
        raise UserError(f"cannot read or unpack {shard.path}: {error.strerror or error}") from error
    return Shard(str(target), shard.name, target.stat().st_size, f"{shard.size} {shard.stamp}")


def _places(folder: str) -> list[Path]:
    """Beside the data first, then in the cache."""
    name = "index-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return [Path(folder, FILE_NAME), cache_folder() / name]


def _read_known(folder: str) -> list[ShardIndex]:
    """A missing or damaged file is made anew, so nothing is said of it."""
    for place in _places(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return unpack(place.read_bytes())
    return []


def _keep(folder: str, parts: list[ShardIndex]) -> None:
    """In the first place that can be written; without one, the index lives in memory only."""
    content = pack(parts)
    for place in _places(folder):
        with contextlib.suppress(OSError):
            if place.parent != Path(folder):
                place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as file:
                file.write(content)
            return
