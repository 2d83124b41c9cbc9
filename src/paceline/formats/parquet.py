"""Parquet files with the bytes of images, as Hugging Face stores image data sets.

It owns which columns have the images and labels, and the names of the classes. Parquet compresses
its pages, so single images cannot be read from it. They are unpacked once, unchanged, as TFRecords
in the cache, and every image is checked then. The rest is done by the source of TFRecords.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.data.digests import digest_of
from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from paceline.experiment.fields import Json
from paceline.formats.convert import REJECTED, Conversion, write
from paceline.formats.image_folder import inspect_image
from paceline.formats.image_table import LABEL_NAMES
from paceline.formats.source_folder import source_folder
from paceline.formats.tfrecord.record import Shard, encode
from paceline.formats.tfrecord.shards import (
    IMAGE_KEY,
    LABEL_KEY,
    NOTES,
    find_packed,
    number_classes,
    read_labels,
)
from paceline.formats.tfrecord.tfrecord_source import build_tfrecord
from paceline.storage.files import explained, read_text
from paceline.storage.locations import cached
from paceline.storage.lock import FileLock

if TYPE_CHECKING:
    from paceline.data.source import Source

ENDING = ".parquet"
ROWS_AT_ONCE = 64


def build_parquet(data: Data, records: Records) -> Source:
    """Return the source of a folder of Parquet files."""
    folder = os.path.abspath(source_folder(data.dir, f"it must have train{ENDING} ..."))
    unpacked, left_out = unpack(folder, records)
    if left_out and not data.skip_bad:
        more = f" (and {len(left_out) - 1:,} more)" * (len(left_out) > 1)
        raise UserError(f"{left_out[0]}{more}; --data.skip-bad leaves them out")
    try:
        source = build_tfrecord(replace(data, dir=unpacked, skip_bad=False), Records())
    except UserError as error:
        raise UserError(str(error).replace(unpacked, folder)) from error
    return replace(source, left_out=tuple(left_out))


def unpack(folder: str, records: Records) -> tuple[str, list[str]]:
    """Return the folder of the unpacked images in the cache, and one line for each bad row. All
    processes of a machine share it, and the first one writes it."""
    shards = [shard for found in find_packed(folder, ENDING).values() for shard in found]
    names = [(os.path.relpath(shard.path, folder), *shard[1:]) for shard in shards]
    root = cached("parquet", folder)
    out = root / digest_of([json.dumps([names, [*vars(records).values()]]).encode()])[:16]
    if not (out / NOTES).exists():
        lock = FileLock(root / ".lock", f"unpacking {folder}")
        lock.acquire(wait_s=math.inf)
        try:
            write(plan_parquet(folder, records), out, 1)
        finally:
            lock.release()
    lines = map(json.loads, read_text(out / REJECTED).splitlines())
    return str(out), [f"{line['file']}: {line['reason']}" for line in lines]


def plan_parquet(folder: str, records: Records) -> Conversion:
    """Return what becomes a TFRecord: the rows of each file, in their order."""
    splits, shards = find_packed(folder, ENDING), Json()
    if "train" not in splits:
        raise UserError(f"{folder} has no Parquet files to train on: train-00000-of-00008{ENDING}")
    columns = _find_columns(splits["train"][0], records)
    labels = {shard: _read_labels(shard, columns) for each in splits.values() for shard in each}
    for name, found in [*splits.items()]:
        if (
            all(label in (-1, None) for shard in found for label in labels[shard])
            and name != "train"
        ):
            del splits[name]  # the test images of a competition
    distinct = {label for found in splits.values() for shard in found for label in labels[shard]}
    classes, numbers = _name_classes(folder, columns, distinct - {None})
    for name, found in splits.items():
        for number, shard in enumerate(found):
            rows = Rows(shard, columns, len(labels[shard]))
            shards[f"{name}-{number:05d}-of-{len(found):05d}"] = rows
    keys = {"image_key": IMAGE_KEY, "label_key": LABEL_KEY, "first_label": 0}
    stamps = json.dumps([[shard[1:] for shard in labels], columns]).encode()
    return Conversion(shards, partial(_encode, numbers), classes, keys, digest_of([stamps]))


class Columns(NamedTuple):
    """The columns of images and labels, whether the image is a struct, and the classes' names."""

    image: str
    label: str
    is_struct: bool
    classes: tuple[str, ...]


class ParquetRow(NamedTuple):
    path: str
    image: bytes | None
    label: int | str | None


@dataclass(frozen=True)
class Rows:
    """The rows of a file, read a few at a time."""

    shard: Shard
    columns: Columns
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        image, label, is_struct, _ = self.columns
        number, read = 0, [image + ".bytes" * is_struct, label]
        with _opened(self.shard) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=read):
                for row in batch.to_pylist():
                    data = row[image] and row[image]["bytes"] if is_struct else row[image]
                    yield ParquetRow(f"{self.shard.path}, row {number}", data, row[label])
                    number += 1


@contextmanager
def _opened(shard: Shard) -> Iterator[Any]:
    """Yield a Parquet file; raise UserError if it is damaged."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "Parquet needs the package pyarrow: pip install 'paceline[parquet]'"
        ) from None
    with explained("read", Path(shard.path)):
        try:
            with parquet.ParquetFile(shard.path) as file:
                yield file
        except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{shard.path} is not a whole Parquet file: {reason}") from None


def _find_columns(shard: Shard, records: Records) -> Columns:
    """Return the columns that were given, or that are the only ones of their kind."""
    from pyarrow import types

    with _opened(shard) as file:
        schema = file.schema_arrow
        notes = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = notes["info"]["features"] if "info" in notes else {}

    def holds_images(kind: Any) -> bool:
        kind = kind.field("bytes").type if is_struct(kind) else kind
        return bool(types.is_binary(kind) or types.is_large_binary(kind))

    def is_struct(kind: Any) -> bool:
        return bool(types.is_struct(kind) and kind.get_field_index("bytes") >= 0)

    images = [field.name for field in schema if holds_images(field.type)]
    named = [name for name, each in features.items() if each.get("_type") == "ClassLabel"]
    usual = [name for name in schema.names if name.lower() in LABEL_NAMES]
    image = _only(shard, schema.names, images, records.image_key, "image-key")
    label = _only(shard, schema.names, named or usual, records.label_key, "label-key")
    classes = tuple(features.get(label, {}).get("names", ()))
    return Columns(image, label, is_struct(schema.field(image).type), classes)


def _only(shard: Shard, names: Sequence[str], fitting: Sequence[str], given: str, flag: str) -> str:
    fitting = [given] if given in names else fitting
    if len(fitting) == 1 and given in ("", *fitting):
        return fitting[0]
    found = f"it has the columns {', '.join(names)[:300]}"
    raise UserError(f"{shard.path}: {found}; pass --records.{flag} with one of them")


def _read_labels(shard: Shard, columns: Columns) -> list[Any]:
    with _opened(shard) as file:
        labels: list[Any] = file.read(columns=[columns.label]).column(columns.label).to_pylist()
    return labels


def _name_classes(
    folder: str, columns: Columns, labels: set[Any]
) -> tuple[tuple[str, ...], Mapping[Any, int]]:
    """Return the names of the classes, and the number of each label."""
    classes = columns.classes or read_labels(folder)
    if all(isinstance(label, int) for label in labels):
        classes = classes or number_classes(max(labels, default=0), 0)
        return classes, {label: label for label in range(len(classes))}
    if not all(isinstance(label, str) for label in labels):
        found = f"the column {columns.label} has neither whole numbers nor names"
        raise UserError(f"{folder}: {found}; pass --records.label-key")
    classes = classes or tuple(sorted(labels))
    return classes, {name: number for number, name in enumerate(classes)}


def _encode(numbers: Mapping[Any, int], row: ParquetRow) -> bytes:
    if row.label not in numbers:
        raise ValueError(f"label {row.label!r} is not one of the {len(numbers)} classes")
    if row.image is None:
        raise ValueError("there is no image (a path alone is not enough: store the bytes)")
    inspect_image(row.image)
    return encode({IMAGE_KEY: row.image, LABEL_KEY: numbers[row.label]})
