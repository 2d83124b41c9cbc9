"""TFRecord frames: find, read, verify and write records. No TensorFlow.

A record is its length (8 bytes), the masked CRC-32C of the length (4), the data, and the masked
CRC-32C of the data (4). `example` decodes the data. Functions take an open binary file, its name
and its size. They raise or yield a `BadRecord` for damage, and raise OSError if the disk fails.
"""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

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
    """A file of records. `given` is the file of the data set, for errors: of a gzip file, `path`
    is an unpacked copy. `stamp` changes when the content does."""

    path: str
    given: str
    size: int
    stamp: str

    @property
    def name(self) -> str:
        return os.path.basename(self.given)


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of `data`, masked as TFRecords store it."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """Return `data` as a record, ready to be written."""
    length = struct.pack("<Q", len(data))
    checksums = (_NUMBER.pack(masked_crc(piece)) for piece in (length, data))
    return length + next(checksums) + data + next(checksums)


def find_offsets(file: IO[bytes], name: str, size: int) -> npt.NDArray[np.int64]:
    """Return the offset of each record, int64 [n]. Reads the lengths only and skips the data."""
    if size == 0:
        raise _empty(name)
    offsets, offset = array("q"), 0
    while offset < size:
        offsets.append(offset)
        offset += FRAME_BYTES + read_length(file, name, offset, size)
    return np.frombuffer(offsets, np.int64)


def read_length(file: IO[bytes], name: str, offset: int, size: int) -> int:
    """Return the length of the data of the record at `offset`, after checking its CRC."""
    if offset + HEADER_BYTES > size:
        raise _cut(name, offset, size)
    file.seek(offset)
    header = read_exactly(file, HEADER_BYTES)
    length: int
    length, crc = _HEADER.unpack(header)
    if masked_crc(header[:8]) != crc:
        lost = f"so the {size - offset:,} bytes from there on cannot be read"
        damage = f"the length of a record is damaged (CRC), {lost}"
        raise BadRecord(name, offset, damage if offset else "this is not a TFRecord file")
    if offset + FRAME_BYTES + length > size:
        raise _cut(name, offset, size)
    return length


def read_record(file: IO[bytes], name: str, offset: int, size: int) -> bytes:
    """Return the data of the record at `offset`, both checksums verified."""
    return _read_data(file, name, offset, read_length(file, name, offset, size))


def _read_data(file: IO[bytes], name: str, offset: int, length: int) -> bytes:
    content = read_exactly(file, length + FOOTER_BYTES)
    data = content[:length]
    if masked_crc(data) != _NUMBER.unpack_from(content, length)[0]:
        raise BadRecord(name, offset, "the data of a record are damaged (CRC)")
    return data


def read_all(file: IO[bytes], name: str, size: int) -> Iterator[tuple[int, bytes | BadRecord]]:
    """Yield every record with its offset, and a `BadRecord` in place of a damaged one.

    Damaged data lose one record. A damaged length loses the rest of the file, because only the
    length says where the next record begins.
    """
    if size == 0:
        yield 0, _empty(name)
    offset = 0
    while offset < size:
        try:
            length = read_length(file, name, offset, size)
        except BadRecord as bad:
            yield offset, bad
            return
        try:
            yield offset, _read_data(file, name, offset, length)
        except BadRecord as bad:
            yield offset, bad
        offset += FRAME_BYTES + length


def _empty(name: str) -> BadRecord:
    return BadRecord(name, 0, "the shard is empty (0 bytes); write it again, or remove it")


def _cut(name: str, offset: int, size: int) -> BadRecord:
    return BadRecord(name, offset, f"the shard is cut in the middle of a record, at byte {size}")


def is_gzip(file: IO[bytes]) -> bool:
    """Return whether the file is gzip data. A record may begin with gzip's magic bytes too, but
    then the CRC of its length is right."""
    file.seek(0)
    header = file.read(HEADER_BYTES)
    is_record = len(header) == HEADER_BYTES and masked_crc(header[:8]) == _HEADER.unpack(header)[1]
    return header.startswith(GZIP_MAGIC) and not is_record


def unpack_gzip(file: IO[bytes], name: str, target: Path) -> None:
    """Write the unpacked file to `target`, completely or not at all."""
    file.seek(0)
    with replacing(target) as out, gzip.GzipFile(fileobj=file, mode="rb") as packed:
        try:
            shutil.copyfileobj(packed, out, CHUNK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            reason = f"the gzip data are cut or damaged ({error}), counted in unpacked bytes"
            raise BadRecord(name, out.tell(), reason) from error
