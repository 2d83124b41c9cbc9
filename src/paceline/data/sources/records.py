"""The frame of TFRecords: where records begin, their checksums, and writing them. No TensorFlow.

A record is its length (8 bytes), the masked CRC-32C of that (4), the data, and the masked CRC-32C of the data (4). What the
data mean belongs to `example`. Functions take an open binary file and the size of the file; a fault is a `BadRecord`.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import google_crc32c
import numpy as np

from paceline.errors import UserError
from paceline.run_folder.folder import replacing

HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
CHUNK_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b\x08"
_HEADER, _NUMBER = struct.Struct("<QI"), struct.Struct("<I")


class BadRecord(UserError):
    """What is wrong, in which file and where."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}: {reason} at offset {offset}")
        self.file, self.offset, self.reason = file, offset, reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.file, self.offset, self.reason)


class Shard(NamedTuple):
    """A file of records as it was found: `stamp` changes when its content does."""

    path: str
    name: str
    size: int
    stamp: str


def masked_crc(data: bytes) -> int:
    """The CRC-32C of `data`, rotated and moved as TFRecords have it."""
    return mask(google_crc32c.value(data))


def mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """One record, ready to be written."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, _NUMBER.pack(masked_crc(length)), data, _NUMBER.pack(masked_crc(data)))
    )


def find_offsets(
    file: IO[bytes], name: str, size: int, advance: Callable[[int], None] | None = None
) -> np.ndarray:
    """Where each record begins, int64 [n], by its length alone: the data are skipped, not read."""
    offsets, offset = array("q"), 0
    if size == 0:
        raise BadRecord(
            name, 0, "the shard is empty (0 bytes); write it again, or leave it out: it ends"
        )
    while offset < size:
        offsets.append(offset)
        following = offset + FRAME_BYTES + read_length(file, name, offset, size)
        if advance:
            advance(following - offset)
        offset = following
    return np.frombuffer(offsets, np.int64)


def read_length(file: IO[bytes], name: str, offset: int, size: int) -> int:
    """The length of the data of the record at `offset`; its CRC holds and the whole record lies in the file."""
    file.seek(offset)
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise BadRecord(
            name,
            offset,
            f"the shard is cut in the middle of a record: it ends with byte {size}; the record begins",
        )
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        raise BadRecord(
            name,
            offset,
            "the length of a record is damaged (CRC)"
            if offset
            else "this is not a TFRecord file: no length",
        )
    if offset + FRAME_BYTES + length > size:
        raise BadRecord(
            name,
            offset,
            f"the shard is cut in the middle of a record: it ends with byte {size}; the record begins",
        )
    return length


def read_record(file: IO[bytes], name: str, offset: int, size: int) -> bytes:
    """The data of the record at `offset`, both checksums verified."""
    length = read_length(file, name, offset, size)
    content = file.read(length + FOOTER_BYTES)
    if len(content) < length + FOOTER_BYTES:
        raise BadRecord(name, offset, "the shard is cut in the middle of a record, which begins")
    data = content[:length]
    if masked_crc(data) != _NUMBER.unpack_from(content, length)[0]:
        raise BadRecord(name, offset, "the data of a record are damaged (CRC)")
    return data


def read_all(file: IO[bytes], name: str, size: int) -> Iterator[tuple[int, bytes | BadRecord]]:
    """Every record with its offset, and in the place of a damaged one its fault. Goes on behind damage: where a length is lost,
    at the next place where a length, its CRC and the data with theirs fit together."""
    offset = 0
    while offset < size:
        try:
            data = read_record(file, name, offset, size)
            yield offset, data
            offset += FRAME_BYTES + len(data)
        except BadRecord as bad:
            yield offset, bad
            offset = _behind(file, name, offset, size)


def _behind(file: IO[bytes], name: str, offset: int, size: int) -> int:
    """Where reading goes on behind the damaged record at `offset`."""
    try:
        return offset + FRAME_BYTES + read_length(file, name, offset, size)
    except BadRecord:
        return next_record(file, name, offset + 1, size)


def next_record(file: IO[bytes], name: str, start: int, size: int) -> int:
    """The first place from `start` on where a whole record lies, or `size`."""
    for begin in range(start, size, CHUNK_BYTES):
        file.seek(begin)
        chunk = np.frombuffer(file.read(CHUNK_BYTES + HEADER_BYTES - 1), np.uint8)
        for place in _possible_headers(chunk):
            try:
                read_record(file, name, begin + place, size)
            except BadRecord:
                continue
            return begin + place
    return size


def _possible_headers(chunk: np.ndarray) -> list[int]:
    """Places in `chunk` where eight bytes are followed by their masked CRC."""
    count = len(chunk) - HEADER_BYTES + 1
    if count <= 0:
        return []
    crc = np.full(count, 0xFFFFFFFF, np.uint32)
    for place in range(8):
        crc = _CRC_TABLE[(crc ^ chunk[place : place + count]) & 0xFF] ^ (crc >> 8)
    crc ^= np.uint32(0xFFFFFFFF)
    masked = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
    stored = sum(
        (
            chunk[8 + place : 8 + place + count].astype(np.uint32) << (8 * place)
            for place in range(1, 4)
        ),
        chunk[8 : 8 + count].astype(np.uint32),
    )
    return np.flatnonzero(masked == stored).tolist()


def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table


_CRC_TABLE = _crc_table()


def is_gzip(file: IO[bytes]) -> bool:
    """A length may begin with gzip's magic bytes too: then its CRC tells them apart."""
    file.seek(0)
    header = file.read(HEADER_BYTES)
    if not header.startswith(GZIP_MAGIC) or len(header) < HEADER_BYTES:
        return header.startswith(GZIP_MAGIC)
    return masked_crc(header[:8]) != _HEADER.unpack(header)[1]


def unpack_gzip(file: IO[bytes], name: str, target: Path, keep_partial: bool) -> None:
    """Write the unpacked file to `target`, whole or not at all; with `keep_partial`, what comes before the damage."""
    file.seek(0)
    with replacing(target) as out, gzip.GzipFile(fileobj=file, mode="rb") as packed:
        try:
            while chunk := packed.read1(
                CHUNK_BYTES
            ):  # `read` would lose what lies before the damage
                out.write(chunk)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            if not keep_partial:
                raise BadRecord(
                    name,
                    out.tell(),
                    f"its gzip data are cut or damaged ({error}); unpacked, this is",
                ) from error
