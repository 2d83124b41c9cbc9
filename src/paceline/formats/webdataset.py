"""Tars of images in the layout of WebDataset, read in place: 0001.jpg, 0001.cls, 0002.jpg ...

It owns what a tar contains: where its images are, and their labels. The index, the splits and the
checks are those of TFRecords. The label of an image is in a `.cls` file of the same name, or in a
`.json` file as "label". An image without files of the same name has its folder's name as its label.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from paceline.experiment.experiment import Data, Records
from paceline.formats.image_folder import inspect_image
from paceline.formats.image_list import ENDINGS
from paceline.formats.reading import range_names, read_batch
from paceline.formats.source_folder import source_folder
from paceline.formats.tfrecord.index import ShardIndex, load_index, read_range, records_digest
from paceline.formats.tfrecord.record import BadRecord, Shard
from paceline.formats.tfrecord.shards import find_splits, number_classes, read_labels
from paceline.formats.tfrecord.tfrecord_source import first_of, join_splits, without_faults
from paceline.storage.files import explained

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.data.source import Source, Split

ENDING = ".tar"
MOST_BYTES = 1 << 20
"""Of a file with a label."""
Sample = dict[str, tarfile.TarInfo]
"""The files of one name, by their endings."""


def build_webdataset(data: Data, records: Records) -> Source:
    """Return the source of a folder of tars."""
    folder = os.path.abspath(source_folder(data.dir, "it must have tars: train-0000.tar ..."))
    splits = find_splits(folder, ENDING, data.split)
    shards = [shard for found in splits.values() for shard in found]
    parts, faults, classes = read_index(folder, shards, records, data.skip_bad)
    if faults and not data.skip_bad:
        raise faults[0]
    facts = classes, None, records_digest(parts), None, tuple(map(str, faults))
    return join_splits(data, splits, parts, _split, facts)


def read_index(
    folder: str, shards: Sequence[Shard], records: Records, inspect: bool = False
) -> tuple[list[ShardIndex], list[BadRecord], tuple[str, ...]]:
    """Return the index of the tars, with labels that count from 0, every fault, and the names of
    the classes. To `inspect` reads the images too."""
    keys, scan = ("webdataset", str(inspect)), partial(index_tar, inspect)
    parts = load_index(folder, shards, keys, True, scan)
    texts, classes = {text for part in parts for text in part.names}, read_labels(folder)
    numbers = {text: int(text) for text in texts if re.fullmatch("[0-9]{1,9}", text)}
    if len(numbers) < len(texts):
        classes = classes or tuple(sorted(texts))
        numbers = {text: classes.index(text) if text in classes else -1 for text in texts}
        records = replace(records, first_label=0)
    tables = [np.array([numbers[text] for text in part.names], np.int32) for part in parts]
    parts = [
        part._replace(labels=table[part.labels]) if len(table) else part
        for part, table in zip(parts, tables, strict=True)
    ]
    if records.first_label < 0:
        first = first_of([part.labels for part in parts], len(classes))
        records = replace(records, first_label=first)
    first = records.first_label
    classes = classes or number_classes(max(numbers.values(), default=first), first)
    parts, faults = without_faults(parts, records, len(classes))
    return [part._replace(labels=part.labels - np.int32(first)) for part in parts], faults, classes


def index_tar(inspect: bool, shard: Shard) -> ShardIndex:
    """Return where the images of a tar are, and their labels as numbers of their texts."""
    found: list[tuple[int, int, str]] = []
    faults: list[tuple[int, str]] = []
    with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
        samples = _samples(shard)
        while True:
            try:
                key, sample = next(samples, ("", {}))
                if not sample:
                    break
                label = ""
                for ending, member in sample.items():
                    if f".{ending}" in ENDINGS:
                        label = label or _label(file, key, sample)
                        if inspect or not member.size:
                            inspect_image(read_range(file, member.offset_data, member.size))
                        found.append((member.offset_data, member.size, label))
            except BadRecord as bad:
                faults.append((bad.offset, bad.reason))
            except ValueError as error:
                faults.append((min(each.offset for each in sample.values()), f"{key}: {error}"))
    if not found and not faults:
        faults.append((0, f"the tar has no image ({', '.join(ENDINGS)})"))
    names = sorted({label for _, _, label in found})
    numbers = {name: number for number, name in enumerate(names)}
    offsets, lengths = (np.array([each[k] for each in found], np.int64) for k in (0, 1))
    labels = np.array([numbers[label] for _, _, label in found], np.int32)
    return ShardIndex(shard, offsets, labels, faults, names, lengths)


def _samples(shard: Shard) -> Iterator[tuple[str, Sample]]:
    """Yield the files of each name, which follow one another; a damaged tar ends in BadRecord."""

    def key_of(member: tarfile.TarInfo) -> str:
        folder, name = os.path.split(member.name)
        return os.path.join(folder, name.partition(".")[0])

    for key, members in itertools.groupby(_members(shard), key_of):
        yield key, {os.path.basename(m.name).partition(".")[2].lower(): m for m in members}


def _members(shard: Shard) -> Iterator[tarfile.TarInfo]:
    """Yield the files of a tar."""
    offset = 0
    try:
        with tarfile.open(shard.path, "r:") as tar:
            for member in tar:
                offset = member.offset
                if member.offset_data + member.size > shard.size or member.size < 0:
                    raise tarfile.ReadError(f"{member.name} is cut")
                if member.isreg() and os.path.basename(member.name)[:1] != ".":
                    yield member
            offset = tar.offset
        with open(shard.path, "rb") as file:
            end = read_range(file, offset, min(512, max(0, shard.size - offset)))
        if not end or any(end):  # tarfile takes what is no header as the end
            raise tarfile.ReadError("it does not end here, but cannot be read further")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        with open(shard.path, "rb") as file:
            packed = "it is gzip data; unpack it" if file.read(2) == b"\x1f\x8b" else str(error)
        raise BadRecord(shard.path, offset, f"the tar is damaged: {packed}") from None


def _label(file: IO[bytes], key: str, sample: Sample) -> str:
    """Return the text of a label; raise ValueError if there is none."""
    for ending in ("cls", "json"):
        if ending in sample:
            member = sample[ending]
            text = read_range(file, member.offset_data, min(member.size, MOST_BYTES))
            if ending == "json":
                try:
                    facts = json.loads(text)
                except RecursionError:
                    facts = {}
                text = str(facts.get("label", "") if isinstance(facts, dict) else "").encode()
            if label := text.decode().strip():
                return label
    folder = os.path.basename(os.path.dirname(key))
    if len(sample) > 1 or folder in ("", "."):
        raise ValueError("there is no label: no .cls file, and no .json file with a label")
    return folder


def _split(parts: Sequence[ShardIndex]) -> Split:
    import tensorflow as tf

    from paceline.data.source import Split

    offsets, lengths, labels = (
        tf.constant(np.concatenate([getattr(part, name) for part in parts]))
        for name in ("offsets", "lengths", "labels")
    )
    ends = tf.constant(np.cumsum([len(part.offsets) for part in parts]), tf.int64)
    paths = tf.constant([os.fsencode(part.shard.path) for part in parts])
    sizes = tf.constant([part.shard.size for part in parts], tf.int64)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        number = tf.searchsorted(ends, indices, side="right")
        path, size = tf.gather(paths, number), tf.gather(sizes, number)
        offset = tf.gather(offsets, indices)
        places = path, size, offset, tf.gather(lengths, indices)
        images = read_batch(_read_range, places, range_names(path, offset, size))
        return images, tf.gather(labels, indices)

    return Split(len(offsets), read, lambda indices: tf.gather(labels, indices))


def _read_range(
    path: tf.Tensor, size: tf.Tensor, offset: tf.Tensor, length: tf.Tensor
) -> tf.Tensor:
    """Return some bytes of a file: one record of this length, between a header and a footer."""
    import tensorflow as tf

    found = tf.raw_ops.FixedLengthRecordDatasetV2(
        filenames=path[None],
        header_bytes=offset,
        record_bytes=length,
        footer_bytes=size - offset - length,
        buffer_size=length,
        compression_type="",
    )
    kind = {"output_types": [tf.string], "output_shapes": [[]]}
    return tf.raw_ops.DatasetToSingleElement(dataset=found, **kind)[0]
