"""TFRecords as a source: random access by an index of offsets, in TensorFlow ops, every checksum verified.

A batch is read by `TFRecordDatasetV2`, which takes byte offsets, sixteen records at a time. Whatever fails in a batch, one
assertion says so, with the place of each of its records; `explain` then looks there again and names the record and its fault.
"""

from __future__ import annotations

import codecs
import dataclasses
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from paceline.config.experiment import Data
from paceline.data.sources import example
from paceline.data.sources.index import ShardIndex, judge, load_index
from paceline.data.sources.records import BadRecord, read_record
from paceline.data.sources.shards import (
    Keys,
    choose_keys,
    fit_keys,
    read_labels,
    read_notes,
    train_and_test,
)
from paceline.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.data.source import Source, Split

PARALLEL_READS = 16
"""On 2 cores and cached files: 13,000 records/s of 100 kB against 6,800 with 2 and 5,900 one by one."""
_MESSAGE = re.compile(r"paceline cannot read (\{.*?\}) (.*?) :end", re.DOTALL)


def build_tfrecord(data: Data, console: Console | None = None) -> Source:
    from paceline.data.source import Source

    console = console or Console(stderr=True)
    keys, classes, splits = open_records(data, console)
    train, test = (_split(parts, keys, len(classes)) for parts in splits.values())
    shape = keys.raw_shape
    return Source(train, test, classes, (shape[0], shape[1], shape[2]) if shape else None)


def open_records(
    data: Data, console: Console
) -> tuple[Keys, tuple[str, ...], dict[str, list[ShardIndex]]]:
    """Keys, class names and the index of both splits. All records are read only where classes have no names or bad ones are
    skipped."""
    if not data.dir:
        raise UserError(
            "the source tfrecord needs its folder: give --data.dir DIR with train-00000-of-00008 ..."
        )
    folder = os.path.abspath(os.path.expanduser(data.dir))
    splits = train_and_test(folder)
    keys, classes = choose_keys(data, read_notes(folder)), read_labels(folder)
    scanned = (keys.image_key, keys.label_key) if data.skip_bad or not classes else None
    parts = load_index(
        folder,
        [shard for shards in splits.values() for shard in shards],
        scanned,
        data.skip_bad,
        console,
    )
    first = next((part for part in parts if len(part.offsets)), None)
    if first is None:
        raise UserError(f"{data.dir}: there is no whole record in its {len(parts)} shards")
    keys = fit_keys(keys, first)
    classes = classes or _count_classes(parts, keys)
    if data.skip_bad:
        parts = _skip_bad(parts, keys, len(classes), console)
    count = len(splits["train"])
    train, test = parts[:count], parts[count:]
    for name, chosen in zip(splits, (train, test), strict=True):
        if not any(len(part.offsets) for part in chosen):
            raise UserError(f"{data.dir}: the {name} split has no whole record")
    return keys, classes, dict(zip(splits, (train, test), strict=True))


def explain(error: BaseException) -> UserError | None:
    """The one line for what TensorFlow says when a record cannot be read; None for any other error."""
    match = _MESSAGE.search(str(error))
    if match is None:
        return _explain_picture(str(error))
    facts, places = (
        codecs.escape_decode(part.encode())[0].decode(errors="replace") for part in match.groups()
    )
    settings = json.loads(facts)
    num_classes, keys = (
        settings.pop("num_classes"),
        Keys(**settings | {"raw_shape": tuple(settings["raw_shape"])}),
    )
    records = [place.split("@", 1) for place in places.split("\x1f")]
    for offset, path in records:
        fault = find_fault(path, int(offset), keys, num_classes)
        if fault:
            return fault
    return UserError(
        f"one of {len(records)} records, such as that at offset {records[0][0]} of {records[0][1]}, could not be read, but is "
        "whole now: the disk or the network failed; the same command resumes"
    )


def find_fault(path: str, offset: int, keys: Keys, num_classes: int) -> BadRecord | None:
    """What is wrong with the record at `offset`: its frame, its features, its label or its size."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            found: int | str = judge(
                data := read_record(file, path, offset, size), keys.image_key, keys.label_key
            )
    except BadRecord as bad:
        return bad
    except OSError as error:
        return BadRecord(
            path, offset, f"cannot be read ({error.strerror or error}); a record was wanted"
        )
    if isinstance(found, str):
        return BadRecord(path, offset, found)
    if not keys.first_label <= found < keys.first_label + num_classes:
        return BadRecord(path, offset, label_fault(found, keys, num_classes))
    length = len(example.decode(data)[keys.image_key][0])  # type: ignore[arg-type]
    if keys.raw_bytes not in (0, length):
        return BadRecord(
            path,
            offset,
            f"a picture has {length} bytes, not {keys.raw_bytes} as {keys.raw_shape} needs,",
        )
    return None


def label_fault(label: int, keys: Keys, num_classes: int) -> str:
    last = keys.first_label + num_classes - 1
    return f"label {label} is outside the {num_classes} classes, {keys.first_label} to {last} (--data.first-label),"


def _explain_picture(message: str) -> UserError | None:
    """Of pictures that are whole records or files, but no pictures, or gone."""
    missing = re.search(r"(/\S.*?); No such file or directory", message)
    if missing:
        return UserError(
            f"{missing[1]} is gone, or cannot be read; the folder changed since the start"
        )
    undecodable = re.search(
        r"Invalid JPEG data|Unknown image file format|Invalid PNG|jpeg::Uncompress failed", message
    )
    return (
        UserError("a picture cannot be decoded; `paceline data check DIR` names it")
        if undecodable
        else None
    )


def _count_classes(parts: Sequence[ShardIndex], keys: Keys) -> tuple[str, ...]:
    """Without labels.txt: as many classes as the highest label says, named by their numbers."""
    highest = max(
        int(part.labels.max()) for part in parts if part.labels is not None and len(part.labels)
    )
    if highest < keys.first_label:
        raise UserError(
            f"the highest label is {highest}; with --data.first-label {keys.first_label} there are no classes"
        )
    if highest >= 1_000_000:
        raise UserError(
            f"the highest label is {highest}; give the classes in labels.txt, one per line, or another --data.label-key"
        )
    return tuple(str(label) for label in range(highest - keys.first_label + 1))


def _skip_bad(
    parts: Sequence[ShardIndex], keys: Keys, num_classes: int, console: Console
) -> list[ShardIndex]:
    """The same parts without labels outside the classes; says how many records are left out, and the first."""
    kept, faults = [], []
    for part in parts:
        assert part.labels is not None
        labels = part.labels.astype(np.int64) - keys.first_label
        inside = (labels >= 0) & (labels < num_classes)
        outside = [
            (int(part.offsets[i]), label_fault(int(part.labels[i]), keys, num_classes))
            for i in np.flatnonzero(~inside)
        ]
        faults += [BadRecord(part.shard.path, *fault) for fault in sorted([*part.faults, *outside])]
        kept.append(
            dataclasses.replace(part, offsets=part.offsets[inside], labels=part.labels[inside])
        )
    if faults:
        whole = sum(len(part.offsets) for part in kept)
        console.print(
            f"left out {len(faults):,} bad records, {whole:,} are whole; the first: {faults[0]}",
            soft_wrap=True,
        )
    return kept


def _split(parts: Sequence[ShardIndex], keys: Keys, num_classes: int) -> Split:
    import tensorflow as tf

    from paceline.data.source import Split

    offsets = tf.constant(np.concatenate([part.offsets for part in parts]), tf.int64)
    ends = tf.constant(np.cumsum([len(part.offsets) for part in parts]), tf.int64)
    paths = tf.constant([part.shard.path for part in parts])
    facts = json.dumps(dataclasses.asdict(keys) | {"num_classes": num_classes})

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = tf.gather(paths, tf.searchsorted(ends, indices, side="right"))
        places = tf.gather(offsets, indices)
        pictures, labels = _read_examples(chosen, places, keys)
        labels = labels - keys.first_label
        fine = tf.reduce_all((labels >= 0) & (labels < num_classes))
        if keys.raw_shape:
            fine &= tf.reduce_all(tf.equal(tf.strings.length(pictures), keys.raw_bytes))
        where = tf.strings.reduce_join(
            tf.strings.join([tf.strings.as_string(places), "@", chosen]), separator="\x1f"
        )
        message = tf.strings.join(["paceline cannot read ", facts, " ", where, " :end"])
        with tf.control_dependencies([tf.debugging.Assert(fine, [message])]):
            return _shaped(pictures, keys), tf.cast(labels, tf.int32)

    return Split(int(offsets.shape[0]), read)


def _read_examples(paths: tf.Tensor, offsets: tf.Tensor, keys: Keys) -> tuple[tf.Tensor, tf.Tensor]:
    """Pictures (strings) and labels (int64) of the records, in order; if any of them cannot be read, labels that none has."""
    import tensorflow as tf

    features = {
        keys.image_key: tf.io.FixedLenFeature([], tf.string),
        keys.label_key: tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_example(records, features)
        return found[keys.image_key], found[keys.label_key]

    count = paths.shape[0] if paths.shape[0] is not None else tf.size(paths, tf.int64)
    records = tf.data.Dataset.from_tensor_slices((paths, offsets))
    records = records.map(_record_reader(), num_parallel_calls=PARALLEL_READS, deterministic=True)
    # Without its remainder: behind an error the rest of the records would come as a smaller batch.
    batch = records.batch(count, drop_remainder=True).map(parse).ignore_errors()
    unread = tf.data.Dataset.from_tensors(
        (tf.fill([count], ""), tf.fill([count], tf.int64.min // 2))
    )
    return batch.concatenate(unread).take(1).get_single_element()


def _record_reader() -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """(path, offset) -> the data of one record, both checksums verified; nothing beyond it is read."""
    import tensorflow as tf

    kind = {"output_types": [tf.string], "output_shapes": [[]]}

    def read(path: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        unbuffered = tf.constant(0, tf.int64)
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=path[None],
            compression_type="",
            buffer_size=unbuffered,
            byte_offsets=offset[None],
        )
        first = tf.raw_ops.TakeDataset(
            input_dataset=records, count=tf.constant(1, tf.int64), **kind
        )
        return tf.raw_ops.DatasetToSingleElement(dataset=first, **kind)[0]

    return read


def _shaped(pictures: tf.Tensor, keys: Keys) -> tf.Tensor:
    """Strings as they are, plain bytes as uint8 [n, height, width, channels]."""
    import tensorflow as tf

    if not keys.raw_shape:
        return tf.identity(pictures)
    height, width, channels = keys.raw_shape
    values = tf.io.decode_raw(pictures, tf.uint8, fixed_length=keys.raw_bytes)
    if keys.raw_order == "channels_first":
        return tf.transpose(tf.reshape(values, [-1, channels, height, width]), [0, 2, 3, 1])
    return tf.reshape(values, [-1, height, width, channels])
