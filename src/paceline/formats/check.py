"""What a data set contains, by split and class, for `paceline data info`; and what is wrong with
it, for `paceline data check`.

The check verifies checksums, labels, and that images can be decoded, and continues after a problem.
Several processes read TFRecords and folders of images, without TensorFlow. Other sources are read
as training reads them.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.detect import detect
from paceline.formats.image_folder import inspect_image
from paceline.formats.image_list import LabelledImage, find_images
from paceline.formats.parquet import unpack
from paceline.formats.pool import run_jobs
from paceline.formats.source_folder import read_bytes
from paceline.formats.tfrecord.index import ShardIndex, load_index, read_range, read_shard
from paceline.formats.tfrecord.record import BadRecord, Shard, check_example
from paceline.formats.tfrecord.shards import (
    complete_keys,
    find_packed,
    find_shards,
    noted_keys,
    number_classes,
    read_labels,
)
from paceline.formats.tfrecord.tfrecord_source import recognize_first_label
from paceline.formats.webdataset import read_index
from paceline.storage.files import explained

if TYPE_CHECKING:
    from paceline.data.source import Source

IMAGES_AT_ONCE = 256
LABELS_AT_ONCE = 1024
MOST_SECONDS = 60  # to find a bad image
Example = tuple[str, bytes | ValueError, int]
"""Its name, its image or what is wrong with it, and its label."""


@dataclass(frozen=True)
class DataReport:
    """The number of good examples by split and class, one line per problem, and what is unusual
    but can be trained on."""

    classes: tuple[str, ...]
    per_class: dict[str, list[int]]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def table(self) -> list[str]:
        """Return the counts as text: a header, one row per class, and the sums."""
        names = (*self.classes, "all")
        width = max(len(name) for name in ("class", *names))
        columns = [[*counts, sum(counts)] for counts in self.per_class.values()]
        rows = [f"{'class':{width}}" + "".join(f"{split:>12}" for split in self.per_class)]
        for name, *counts in zip(names, *columns, strict=True):
            rows.append(f"{name:{width}}" + "".join(f"{count:>12,}" for count in counts))
        return rows


class JobResult(NamedTuple):
    """A split: labels of good examples, a line per problem, digests of images with their names."""

    split: str
    labels: Counter[int]
    problems: list[str]
    images: list[tuple[bytes, str]]


def describe(source: Source) -> DataReport:
    """Count every label of a source."""
    import tensorflow as tf

    per_class = {}
    splits = {"train": source.train, "validation": source.validation, "test": source.test}
    for name, split in splits.items():
        if split is None:
            continue
        counts = np.zeros(len(source.classes), np.int64)
        for start in range(0, split.size, LABELS_AT_ONCE):
            indices = tf.range(start, min(start + LABELS_AT_ONCE, split.size), dtype=tf.int64)
            labels = split.labels(indices) if split.labels else split.read(indices)[1]
            counts += np.bincount(labels.numpy(), minlength=len(counts))
        per_class[name] = [int(count) for count in counts]
    return DataReport(tuple(source.classes), per_class)


def check(
    folder: str | Path, split: float = 0.0, records: Records | None = None, processes: int = 0
) -> DataReport:
    """Check every example of `folder`; `split` is the share of a folder of images to test on."""
    path = str(Path(folder).expanduser())
    plan = _plan(path, split, records or Records())
    if isinstance(plan, str):
        return _check_other(path, plan)
    check_job = partial(_check_job, plan.read, plan.encoded)
    return _summarize(plan, run_jobs(check_job, plan.jobs, "checking", processes))


def first_fault(data: Data, records: Records) -> str:
    """Return the first bad example that is found in a minute; nothing if there is none."""
    plan, end = _plan(data.dir, data.split, records), time.monotonic() + MOST_SECONDS
    if isinstance(plan, str):
        return ""
    for job in plan.jobs:
        problems = _check_job(plan.read, plan.encoded, job).problems
        if problems or time.monotonic() > end:
            return problems[0] if problems else ""
    return ""


class _Plan(NamedTuple):
    """What is checked in one process at a time, and what is known before."""

    folder: str
    jobs: list[tuple[str, Any]]
    read: Callable[[Any], Iterable[Example]]
    classes: tuple[str, ...]
    first_label: int = 0
    problems: Sequence[str] = ()
    left_out: Counter[str] | None = None
    encoded: bool = True


def _plan(folder: str, split: float, records: Records) -> _Plan | str:
    """Return the plan, or the name of a source that checks itself."""
    source = detect(folder)
    if source == "pictures":
        found = find_images(Path(folder).expanduser(), split)
        jobs: list[tuple[str, Any]] = [
            (name, images[start : start + IMAGES_AT_ONCE])
            for name, images in found.splits.items()
            for start in range(0, len(images), IMAGES_AT_ONCE)
        ]
        problems, read = [*found.problems, *found.faults], partial(_read_images, found.root)
        return _Plan(folder, jobs, read, found.classes, 0, problems, found.left_out)
    if source == "webdataset":
        tars = [(name, tar) for name, each in find_packed(folder, ".tar").items() for tar in each]
        index, faults, classes = read_index(folder, [tar for _, tar in tars], records)
        jobs = [(name, part) for (name, _), part in zip(tars, index, strict=True)]
        return _Plan(folder, jobs, _read_tar, classes, 0, [str(fault) for fault in faults])
    left_out = list[str]()
    if source == "parquet":
        folder, left_out = unpack(os.path.abspath(folder), records)
        source, records = "tfrecord", Records()
    if source == "tfrecord":
        noted, classes = noted_keys(folder), read_labels(folder)
        keys = complete_keys(records, noted)
        jobs = [(name, shard) for name, shards in find_shards(folder).items() for shard in shards]
        if max(records.first_label, noted.first_label) < 0:
            pair = keys.image_key, keys.label_key
            parts = load_index(folder, [shard for _, shard in jobs], pair, skip_bad=True)
            keys = recognize_first_label(folder, parts, keys, len(classes))
        read_all = partial(_read_shard, keys, len(classes))
        encoded = not keys.raw_shape
        return _Plan(folder, jobs, read_all, classes, keys.first_label, left_out, encoded=encoded)
    return source


def _check_other(folder: str, source: str) -> DataReport:
    """Build the source: CIFAR and arrays check themselves when they are read."""
    from paceline.data.build_source import build_source

    try:
        return describe(build_source(Data(source=source, dir=folder)))
    except PassingFault:
        raise
    except UserError as error:
        return DataReport((), {}, (str(error),))


def _summarize(plan: _Plan, results: Iterable[JobResult]) -> DataReport:
    labels, problems = {job[0]: Counter[int]() for job in plan.jobs}, [*plan.problems]
    images: dict[bytes, tuple[str, str]] = {}
    first = plan.first_label
    for result in results:
        labels[result.split].update(result.labels)
        problems += result.problems
        for digest, name in result.images:
            split, other = images.setdefault(digest, (result.split, name))
            if split != result.split:
                problems.append(f"{name} ({result.split}) is the same image as {other} ({split})")
    splits = sorted(labels, key=lambda split: (split != "train", split))
    highest = max((label for counter in labels.values() for label in counter), default=first)
    try:
        names = plan.classes or number_classes(highest, first)
    except UserError as error:
        return DataReport((), {split: [] for split in splits}, (*sorted(problems), str(error)))
    counts = {
        split: [labels[split][first + label] for label in range(len(names))] for split in splits
    }
    empty = [split for split in splits if not labels[split]]
    problems = sorted(problems)
    problems += [f"{plan.folder}: the {split} split has no good example" for split in empty]
    return DataReport(names, counts, tuple(problems), tuple(_notes(names, counts, plan.left_out)))


def _notes(
    classes: Sequence[str], counts: dict[str, list[int]], left_out: Counter[str] | None
) -> Iterator[str]:
    """Yield what is unusual but can be trained on."""
    for split, numbers in counts.items():
        least = 2 if split == "train" else 1
        if few := [name for name, count in zip(classes, numbers, strict=True) if count < least]:
            some = ", ".join(few[:5]) + (" ..." if few[5:] else "")
            yield f"classes with fewer than {least} {split} images ({len(few)}): {some}"
    if left_out:
        kinds = ", ".join(f"{kind or 'no ending'} ({n:,})" for kind, n in left_out.most_common(8))
        yield f"{left_out.total():,} entries of class folders are not images and left out: {kinds}"


def _check_job(
    read: Callable[[Any], Iterable[Example]], encoded: bool, job: tuple[str, Any]
) -> JobResult:
    found = JobResult(job[0], Counter(), [], [])
    for name, image, label in read(job[1]):
        try:
            if isinstance(image, ValueError):
                raise image
            if encoded:
                inspect_image(image)
        except ValueError as error:
            found.problems.append(f"{name}: {error}")
        else:
            found.labels[label] += 1
            found.images.append((hashlib.blake2b(image, digest_size=16).digest(), name))
    return found


def _read_shard(keys: Records, num_classes: int, shard: Shard) -> Iterator[Example]:
    for offset, data in read_shard(shard):
        image: bytes | ValueError
        try:
            if isinstance(data, BadRecord):
                raise ValueError(data.reason)
            image, label = check_example(data, keys, num_classes)
        except ValueError as error:
            image, label = error, 0
        yield f"{shard.path}, offset {offset}", image, label


def _read_tar(part: ShardIndex) -> Iterator[Example]:
    path = part.shard.path
    with explained("read", Path(path)), open(path, "rb") as file:
        for offset, length, label in zip(part.offsets, part.lengths, part.labels, strict=True):
            data = read_range(file, int(offset), int(length))
            yield f"{path}, offset {offset}", data, int(label)


def _read_images(root: Path, images: Sequence[LabelledImage]) -> Iterator[Example]:
    for path, label in images:
        yield str(root / path), read_bytes(root / path), label
