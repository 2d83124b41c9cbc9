"""The source of TFRecords: random access through an index of offsets, in TensorFlow ops.

`TFRecordDatasetV2` reads a batch by byte offsets, sixteen records at a time, and verifies every
checksum.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.reading import read_batch, record_names, refuse
from paceline.formats.source_folder import source_folder
from paceline.formats.tfrecord.frames import BadRecord
from paceline.formats.tfrecord.index import ShardIndex, load_index, records_digest
from paceline.formats.tfrecord.keys import (
    complete_keys,
    fit_keys,
    label_fault,
    raw_bytes,
    size_fault,
)
from paceline.formats.tfrecord.shards import (
    MOST_UNNAMED_CLASSES,
    TOO_MANY_CLASSES,
    noted_keys,
    read_labels,
    train_and_test,
)

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.data.source import Source, Split

PARALLEL_READS = 16
"""On 2 cores and cached files: 13,000 records/s of 100 kB; 6,800 with 2, and 5,900 one by one."""


def build_tfrecord(data: Data, records: Records, console: Console | None = None) -> Source:
    """Return the source of a folder of TFRecords."""
    from paceline.data.source import Source

    keys, classes, splits = _open_records(data, records, console or Console(stderr=True))
    train, test = (_split(parts, keys, len(classes)) for parts in splits)
    shape = keys.raw_shape
    digest = records_digest([*splits[0], *splits[1]])
    return Source(train, test, classes, (shape[0], shape[1], shape[2]) if shape else None, digest)


def _open_records(
    data: Data, records: Records, console: Console
) -> tuple[Records, tuple[str, ...], list[list[ShardIndex]]]:
    """Return keys, class names and the index of the train and the test split.

    Reads all records only if the classes have no names or bad records are skipped."""
    advice = "it must have TFRecords: train-00000-of-00008 ..."
    folder = os.path.abspath(source_folder(data.dir, advice))
    splits = train_and_test(folder)
    noted, classes = noted_keys(folder), read_labels(folder)
    keys = complete_keys(records, noted)
    scanned = (keys.image_key, keys.label_key) if data.skip_bad or not classes else None
    shards = [shard for found in splits.values() for shard in found]
    parts = load_index(folder, shards, scanned, data.skip_bad, console)
    first = next((part for part in parts if len(part.offsets)), None)
    if first is None:
        raise UserError(f"{data.dir}: there is no whole record in its {len(parts)} shards")
    keys = fit_keys(keys, first.shard, int(first.offsets[0]))
    chosen = max(records.first_label, noted.first_label) >= 0
    classes = classes or _number_classes(parts, keys, chosen)
    if data.skip_bad:
        parts = _skip_bad(parts, keys, len(classes), console)
    count = len(splits["train"])
    halves = [parts[:count], parts[count:]]
    for name, half in zip(splits, halves, strict=True):
        if not any(len(part.offsets) for part in half):
            raise UserError(f"{data.dir}: the {name} split has no whole record")
    return keys, classes, halves


def _number_classes(parts: Sequence[ShardIndex], keys: Records, chosen: bool) -> tuple[str, ...]:
    """Return numbers as the names of the classes, up to the highest label.

    If nobody has `chosen` the first label and no record has the label 0, labels count from 1.
    """
    labels = [part.labels for part in parts if part.labels is not None and len(part.labels)]
    highest = max(int(each.max()) for each in labels)
    if not chosen and min(int(each.min()) for each in labels) == 1:
        raise UserError(
            f"the labels are 1 to {highest}, and no record has the label 0; give "
            "--records.first-label 1, or --records.first-label 0 if that class has no example"
        )
    if highest < keys.first_label:
        flag = f"--records.first-label {keys.first_label}"
        raise UserError(f"the highest label is {highest}; with {flag} there are no classes")
    if highest >= MOST_UNNAMED_CLASSES:
        raise UserError(f"the highest label is {highest}; {TOO_MANY_CLASSES}")
    return tuple(str(label) for label in range(highest - keys.first_label + 1))


def _skip_bad(
    parts: Sequence[ShardIndex], keys: Records, num_classes: int, console: Console
) -> list[ShardIndex]:
    """Return the parts without labels outside the classes. Print how many records are left out,
    and the first of them."""
    kept: list[ShardIndex] = []
    faults: list[BadRecord] = []
    for part in parts:
        assert part.labels is not None
        numbers = part.labels.astype(np.int64) - keys.first_label
        inside = (numbers >= 0) & (numbers < num_classes)
        outside = [
            (int(part.offsets[i]), f"label {part.labels[i]} {label_fault(keys, num_classes)}")
            for i in np.flatnonzero(~inside)
        ]
        faults += [
            BadRecord(part.shard.given, *fault) for fault in sorted([*part.faults, *outside])
        ]
        good, labels = part.offsets[inside], part.labels[inside]
        kept.append(dataclasses.replace(part, offsets=good, labels=labels))
    if faults:
        counts = f"{len(faults):,} bad records, {sum(len(part.offsets) for part in kept):,} remain"
        console.print(f"left out {counts}; the first: {faults[0]}", soft_wrap=True)
    return kept


def _split(parts: Sequence[ShardIndex], keys: Records, num_classes: int) -> Split:
    import tensorflow as tf

    from paceline.data.source import Split

    offsets = tf.constant(np.concatenate([part.offsets for part in parts]), tf.int64)
    ends = tf.constant(np.cumsum([len(part.offsets) for part in parts]), tf.int64)
    paths = tf.constant([os.fsencode(part.shard.path) for part in parts])

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        path = tf.gather(paths, tf.searchsorted(ends, indices, side="right"))
        offset = tf.gather(offsets, indices)
        images, labels = _read_examples(path, offset, keys)
        checks = _checks(path, offset, images, labels, keys, num_classes)
        with tf.control_dependencies(checks):
            return _shaped(images, keys), tf.cast(labels - keys.first_label, tf.int32)

    return Split(int(offsets.shape[0]), read)


def _read_examples(
    path: tf.Tensor, offset: tf.Tensor, keys: Records
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return images (strings) and labels (int64) of the records, in order."""
    import tensorflow as tf

    records = tf.data.Dataset.from_tensor_slices((path, offset))
    records = records.map(_read_record, num_parallel_calls=PARALLEL_READS, deterministic=True)
    features = {
        keys.image_key: tf.io.FixedLenFeature([], tf.string),
        keys.label_key: tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(strings: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_example(strings, features)
        return found[keys.image_key], found[keys.label_key]

    names = record_names(path, offset, (keys.image_key, keys.label_key))
    images, labels = read_batch(records, names, parse)
    return images, labels


def _checks(
    path: tf.Tensor,
    offset: tf.Tensor,
    images: tf.Tensor,
    labels: tf.Tensor,
    keys: Records,
    num_classes: int,
) -> list[tf.Operation]:
    """Return ops that fail if a label is outside the classes, or an image of the wrong size."""
    import tensorflow as tf

    def faults(what: str, number: tf.Tensor, fault: str) -> tf.Tensor:
        parts = [path, ", offset ", tf.strings.as_string(offset), f": {what} "]
        return tf.strings.join([*parts, tf.strings.as_string(number), f" {fault}"])

    last = keys.first_label + num_classes - 1
    outside = (labels < keys.first_label) | (labels > last)
    checks = [refuse(faults("label", labels, label_fault(keys, num_classes)), outside)]
    if keys.raw_shape:
        length = tf.strings.length(images)
        texts = faults("an image of", length, size_fault(keys))
        checks.append(refuse(texts, length != raw_bytes(keys)))
    return checks


def _read_record(path: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Return the data of one record, both checksums verified. Nothing after it is read."""
    import tensorflow as tf

    kind = {"output_types": [tf.string], "output_shapes": [[]]}
    records = tf.raw_ops.TFRecordDatasetV2(
        filenames=path[None],
        compression_type="",
        buffer_size=tf.constant(0, tf.int64),  # unbuffered
        byte_offsets=offset[None],
    )
    first = tf.raw_ops.TakeDataset(input_dataset=records, count=tf.constant(1, tf.int64), **kind)
    return tf.raw_ops.DatasetToSingleElement(dataset=first, **kind)[0]


def _shaped(images: tf.Tensor, keys: Records) -> tf.Tensor:
    """Return strings unchanged, plain bytes as uint8 [n, height, width, channels]."""
    import tensorflow as tf

    if not keys.raw_shape:
        return tf.identity(images)
    height, width, channels = keys.raw_shape
    values = tf.io.decode_raw(images, tf.uint8, fixed_length=raw_bytes(keys))
    if keys.raw_order == "channels_first":
        return tf.transpose(tf.reshape(values, [-1, channels, height, width]), [0, 2, 3, 1])
    return tf.reshape(values, [-1, height, width, channels])
