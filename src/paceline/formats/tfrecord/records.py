"""TFRecord frames: find, read, verify and write records. No TensorFlow.

A record is its length (8 bytes), the masked CRC-32C of the length (4), the data, and the masked
CRC-32C of the data (4). The content of the data belongs to `example`. Functions take an open
binary file, its name and its size. They raise or yield a `BadRecord` for damage, and raise OSError
if the disk fails.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import google_crc32c
import numpy as np

from paceline.errors import UserError
from paceline.storage.files import read_exactly, replacing

HEADER_BYTES, FOOTER_BYTES = 12, 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
CHUNK_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b\x08"
_HEADER, _NUMBER = struct.Struct("<QI"), struct.Struct("<I")


class BadRecord(UserError):
    """A record that cannot be used: its file, the byte where it begins, and the reason."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}, offset {offset}: {reason}")
        self.file, self.offset, self.reason = file, offset, reason

    def __reduce__(self) -> tuple[type, tuple[str, int, str]]:
        return type(self), (self.file, self.offset, self.reason)


class Shard(NamedTuple):
    """A file of records. `stamp` changes when its content does."""

    path: str
    name: str
    size: int
    stamp: str


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of `data`, masked as TFRecords store it."""
    return _mask(google_crc32c.value(data))


def _mask(crc: Any) -> Any:
    """Mask one CRC, or an array of uint32."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """Return `data` as a record, ready to be written."""
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, _NUMBER.pack(masked_crc(length)), data, _NUMBER.pack(masked_crc(data)))
    )


def find_offsets(
    file: IO[bytes], name: str, size: int, advance: Callable[[int], None] = lambda amount: None
) -> np.ndarray:
    """Return where each record begins, int64 [n]. Reads the lengths only and skips the data."""
    if size == 0:
        raise _empty(name)
    offsets, offset = array("q"), 0
    while offset < size:
        offsets.append(offset)
        frame = FRAME_BYTES + read_length(file, name, offset, size)
        advance(frame)
        offset += frame
    return np.frombuffer(offsets, np.int64)


def read_length(file: IO[bytes], name: str, offset: int, size: int) -> int:
    """Return the data's length of the record at `offset`; its CRC and the file's end fit it."""
    if offset + HEADER_BYTES > size:
        raise _cut(name, offset, size)
    file.seek(offset)
    header = read_exactly(file, HEADER_BYTES)
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        damage = "the length of a record is damaged (CRC)"
        raise BadRecord(name, offset, damage if offset else "this is not a TFRecord file")
    if offset + FRAME_BYTES + length > size:
        raise _cut(name, offset, size)
    return length


def read_record(file: IO[bytes], name: str, offset: int, size: int) -> bytes:
    """Return the data of the record at `offset`, both checksums verified."""
    length = read_length(file, name, offset, size)
    content = read_exactly(file, length + FOOTER_BYTES)
    data = content[:length]
    if masked_crc(data) != _NUMBER.unpack_from(content, length)[0]:
        raise BadRecord(name, offset, "the data of a record are damaged (CRC)")
    return data


def read_all(
    file: IO[bytes], name: str, size: int, advance: Callable[[int], None] = lambda amount: None
) -> Iterator[tuple[int, bytes | BadRecord]]:
    """Yield every record with its offset, and a `BadRecord` in place of a damaged one.

    Reading continues after damage. If a length is lost, it continues where a length, its CRC, the
    data and their CRC fit together again.
    """
    if size == 0:
        yield 0, _empty(name)
    offset = 0
    while offset < size:
        try:
            found: bytes | BadRecord = (data := read_record(file, name, offset, size))
            following = offset + FRAME_BYTES + len(data)
        except BadRecord as bad:
            found, following = bad, _after_damage(file, name, offset, size)
        yield offset, found
        advance(following - offset)
        offset = following


def _after_damage(file: IO[bytes], name: str, offset: int, size: int) -> int:
    """Return where reading continues after the damaged record at `offset`."""
    try:
        return offset + FRAME_BYTES + read_length(file, name, offset, size)
    except BadRecord:
        return next_record(file, name, offset + 1, size)


def _empty(name: str) -> BadRecord:
    return BadRecord(name, 0, "the shard is empty (0 bytes); write it again, or remove it")


def _cut(name: str, offset: int, size: int) -> BadRecord:
    return BadRecord(name, offset, f"the shard is cut in the middle of a record, at byte {size}")


def next_record(file: IO[bytes], name: str, start: int, size: int) -> int:
    """Return the first offset from `start` on with a whole record, or `size`."""
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


_CRC_TABLE = np.array(
    [google_crc32c.value(bytes([byte ^ 0xFF])) ^ 0xFF000000 for byte in range(256)], np.uint32
)
"""The usual table of CRC-32C, from the CRC of each single byte."""


def _possible_headers(chunk: np.ndarray) -> list[int]:
    """Return the places in `chunk` where eight bytes are followed by their masked CRC."""
    count = len(chunk) - HEADER_BYTES + 1
    if count <= 0:
        return []
    crc = np.full(count, 0xFFFFFFFF, np.uint32)
    for place in range(8):
        crc = _CRC_TABLE[(crc ^ chunk[place : place + count]) & 0xFF] ^ (crc >> 8)
    windows = np.lib.stride_tricks.sliding_window_view(chunk[8:], 4)
    stored = np.ascontiguousarray(windows).view("<u4")[:, 0]
    return np.flatnonzero(_mask(~crc) == stored).tolist()


def is_gzip(file: IO[bytes]) -> bool:
    """Return whether the file is gzip data. A length may begin with gzip's magic bytes too; then
    its CRC fits."""
    file.seek(0)
    header = file.read(HEADER_BYTES)
    if not header.startswith(GZIP_MAGIC) or len(header) < HEADER_BYTES:
        return header.startswith(GZIP_MAGIC)
    return masked_crc(header[:8]) != _HEADER.unpack(header)[1]


def unpack_gzip(file: IO[bytes], name: str, target: Path, keep_partial: bool) -> None:
    """Write the unpacked file to `target`, whole or not at all. With `keep_partial`, write what
    comes before the damage."""
    file.seek(0)
    with replacing(target) as out, gzip.GzipFile(fileobj=file, mode="rb") as packed:
        try:
            # `read` would lose the bytes just before the damage.
            while chunk := packed.read1(CHUNK_BYTES):
                out.write(chunk)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            if not keep_partial:
                reason = f"the gzip data are cut or damaged ({error}), counted in unpacked bytes"
                raise BadRecord(name, out.tell(), reason) from error
