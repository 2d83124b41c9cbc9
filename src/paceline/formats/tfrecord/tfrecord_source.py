"""The source of TFRecords: random access through an index of offsets, in TensorFlow ops.

`TFRecordDatasetV2` reads a batch by byte offsets, sixteen at a time, and verifies checksums.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from paceline.errors import UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.reading import read_batch, record_names
from paceline.formats.source_folder import source_folder
from paceline.formats.tfrecord.index import COLUMNS, ShardIndex, load_index, read_at, records_digest
from paceline.formats.tfrecord.record import BadRecord, Shard, label_fault, parse_example
from paceline.formats.tfrecord.shards import (
    complete_keys,
    find_splits,
    noted_keys,
    number_classes,
    read_labels,
)

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.data.source import Source, Split

ENCODED = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"RIFF")
"""How an image that is not plain bytes begins."""
RECORDS_TRIED = 8
"""Of each shard, to find out whether labels count from 0. If not, all labels are read."""


def build_tfrecord(data: Data, records: Records) -> Source:
    """Return the source of a folder of TFRecords.

    Reads all records only if the classes have no names or bad records are skipped."""
    advice = "it must have TFRecords: train-00000-of-00008 ..."
    folder = os.path.abspath(source_folder(data.dir, advice))
    splits = find_splits(folder, share=data.split)
    classes, noted = read_labels(folder), noted_keys(folder)
    left_out = list[str]()
    keys = complete_keys(records, noted)
    scanned = (keys.image_key, keys.label_key) if data.skip_bad or not classes else None
    shards = [shard for found in splits.values() for shard in found]
    parts = load_index(folder, shards, scanned, data.skip_bad)
    if max(records.first_label, noted.first_label) < 0:
        keys = recognize_first_label(folder, parts, keys, len(classes))
    classes = classes or _name_classes(parts, keys)
    if data.skip_bad:
        parts, faults = without_faults(parts, keys, len(classes))
        left_out = [str(fault) for fault in faults]
    _check_first(parts, keys)
    shape = (keys.raw_shape[0], keys.raw_shape[1], keys.raw_shape[2]) if keys.raw_shape else None
    facts = classes, shape, records_digest(parts), None, tuple(left_out)
    return join_splits(data, splits, parts, partial(_split, keys, len(classes)), facts)


def join_splits(
    data: Data,
    splits: Mapping[str, Sequence[Shard]],
    parts: Sequence[ShardIndex],
    build: Callable[[Sequence[ShardIndex]], Split],
    facts: tuple[Any, ...],
) -> Source:
    """Return the source of all splits, with its other `facts`. `build` makes a split of its parts,
    which come in the order of the splits. Without a test split, a share of train is held out."""
    from paceline.data.source import Source, hold_out

    remaining, built = iter(parts), {}
    for name, found in splits.items():
        own = list(islice(remaining, len(found)))
        if not any(len(part.offsets) for part in own):
            raise UserError(f"{data.dir}: the {name} split has no complete record")
        built[name] = build(own)
    train, test = built["train"], built.get("test")
    source = Source(train, test or train, *facts)
    if not test:
        train, test = hold_out(source, max(1, round(data.split * train.size)))
    return replace(source, train=train, test=test or train, validation=built.get("validation"))


def recognize_first_label(
    folder: str, parts: Sequence[ShardIndex], keys: Records, num_names: int
) -> Records:
    """Return the keys with the label of the first class: 1 if no label is 0, and the highest is the
    number of names, if the classes have names. Reads all labels only if some do not decide it."""
    for number in range(RECORDS_TRIED if num_names else 0):
        for part in parts:
            if number < len(part.offsets):
                with contextlib.suppress(ValueError, UserError):
                    data = read_at(part.shard, int(part.offsets[number]))
                    label = parse_example(data, keys.image_key, keys.label_key)[1]
                    if label in (0, num_names):
                        return replace(keys, first_label=min(label, 1))
    if any(len(part.labels) < len(part.offsets) for part in parts):
        shards = [part.shard for part in parts]
        parts = load_index(folder, shards, (keys.image_key, keys.label_key), skip_bad=True)
    return replace(keys, first_label=first_of([part.labels for part in parts], num_names))


def first_of(labels: Sequence[npt.NDArray[np.int32]], num_names: int) -> int:
    """Return 1 if no label is 0, and the highest is the number of names, if there are any."""
    numbers = np.concatenate(labels)
    highest = numbers.max(initial=0)
    return int(numbers.min(initial=highest) == 1 and highest == (num_names or highest))


def _name_classes(parts: Sequence[ShardIndex], keys: Records) -> tuple[str, ...]:
    """Return the texts of the classes in the records, if each has one of its own, else numbers."""
    highest = max((int(part.labels.max(initial=0)) for part in parts), default=0)
    numbers = number_classes(max(highest, keys.first_label), keys.first_label)
    texts: dict[int, str] = {}
    for part in parts:
        texts = {label: name for label, name in enumerate(part.names) if name} | texts
    names = tuple(texts.get(keys.first_label + label, "") for label in range(len(numbers)))
    return names if all(names) and len(set(names)) == len(names) else numbers


def without_faults(
    parts: Sequence[ShardIndex], keys: Records, num_classes: int
) -> tuple[list[ShardIndex], list[BadRecord]]:
    """Return the parts without labels outside the classes, and every bad record."""
    kept: list[ShardIndex] = []
    faults: list[BadRecord] = []
    for part in parts:
        numbers = part.labels.astype(np.int64) - keys.first_label
        inside = (numbers >= 0) & (numbers < num_classes)
        outside = [
            (int(part.offsets[i]), label_fault(part.labels[i], keys, num_classes))
            for i in np.flatnonzero(~inside)
        ]
        every = sorted([*part.faults, *outside])
        faults += [BadRecord(part.shard.path, *fault) for fault in every]
        columns = {name: getattr(part, name) for name in COLUMNS if len(getattr(part, name))}
        kept.append(part._replace(**{name: each[inside] for name, each in columns.items()}))
    return kept, faults


def _check_first(parts: Sequence[ShardIndex], keys: Records) -> None:
    """Raise BadRecord if the keys do not fit the first record, before anything is compiled."""
    first = next(part for part in parts if len(part.offsets))
    shard, offset = first.shard, int(first.offsets[0])
    data = read_at(shard, offset)
    try:
        image, _ = parse_example(data, keys.image_key, keys.label_key)
    except ValueError as error:
        raise BadRecord(shard.path, offset, str(error)) from None
    if not keys.raw_shape and not image.startswith(ENCODED):
        advice = f"for {len(image)} plain bytes pass --records.raw-shape H W C"
        raise BadRecord(shard.path, offset, f"an image has no known format; {advice}")


def _split(keys: Records, num_classes: int, parts: Sequence[ShardIndex]) -> Split:
    import tensorflow as tf

    from paceline.data.source import Split

    offsets = tf.constant(np.concatenate([part.offsets for part in parts]), tf.int64)
    ends = tf.constant(np.cumsum([len(part.offsets) for part in parts]), tf.int64)
    paths = tf.constant([os.fsencode(part.shard.path) for part in parts])

    def parse(strings: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = {
            keys.image_key: tf.io.FixedLenFeature([], tf.string),
            keys.label_key: tf.io.FixedLenFeature([], tf.int64),
        }
        found = tf.io.parse_example(strings, features)
        images, labels = found[keys.image_key], found[keys.label_key] - keys.first_label
        good = (labels >= 0) & (labels < num_classes)
        if keys.raw_shape:
            good &= tf.strings.length(images) == math.prod(keys.raw_shape)
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(good), [labels])]):
            return tf.identity(images), tf.cast(labels, tf.int32)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        path = tf.gather(paths, tf.searchsorted(ends, indices, side="right"))
        offset = tf.gather(offsets, indices)
        names = record_names(path, offset, keys, num_classes)
        images, labels = read_batch(_read_record, (path, offset), names, parse)
        return _shaped(images, keys), labels

    return Split(int(offsets.shape[0]), read)


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
        return images
    height, width, channels = keys.raw_shape
    values = tf.io.decode_raw(images, tf.uint8, fixed_length=math.prod(keys.raw_shape))
    if keys.raw_order == "channels_first":
        return tf.transpose(tf.reshape(values, [-1, channels, height, width]), [0, 2, 3, 1])
    return tf.reshape(values, [-1, height, width, channels])
