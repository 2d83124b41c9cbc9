"""What a data set contains, by split and class, for `paceline data info`; and what is wrong with
it, for `paceline data check`.

The check verifies checksums, labels, and that images can be decoded, and continues after a problem.
Several processes read TFRecords and folders of images, without TensorFlow. Other sources are read
as training reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console

from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.detect import detect
from paceline.formats.image_folder import LabelledImage, find_images, inspect_image
from paceline.formats.pool import run_jobs
from paceline.formats.source_folder import read_bytes
from paceline.formats.tfrecord.index import read_shard
from paceline.formats.tfrecord.record import BadRecord, Shard, check_example
from paceline.formats.tfrecord.shards import (
    complete_keys,
    find_shards,
    noted_keys,
    number_classes,
    read_labels,
)

if TYPE_CHECKING:
    from paceline.data.source import Source

IMAGES_AT_ONCE = 256
LABELS_AT_ONCE = 1024


@dataclass(frozen=True)
class Report:
    """The number of good examples by split and class, and one line per problem."""

    classes: tuple[str, ...]
    per_class: dict[str, list[int]]
    problems: tuple[str, ...] = ()

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
    """The labels of the good examples of a split, and one line per problem."""

    split: str
    labels: Counter[int]
    problems: list[str]


def describe(source: Source) -> Report:
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
            counts += np.bincount(split.read(indices)[1].numpy(), minlength=len(counts))
        per_class[name] = [int(count) for count in counts]
    return Report(tuple(source.classes), per_class)


def check(
    folder: str | Path,
    split: float = 0.0,
    records: Records | None = None,
    processes: int = 0,
    console: Console | None = None,
) -> Report:
    """Check every example of `folder`; `split` is the share of a folder of images to test on."""
    path = str(Path(folder).expanduser())
    source, first_label, problems = detect(path), 0, list[str]()
    jobs: list[tuple[str, Any]]
    check_job: Callable[[tuple[str, Any]], JobResult]
    if source == "pictures":
        listed = find_images(Path(path), split)
        classes, problems = listed.classes, listed.problems
        jobs = [
            (name, images[start : start + IMAGES_AT_ONCE])
            for name, images in listed.splits.items()
            for start in range(0, len(images), IMAGES_AT_ONCE)
        ]
        check_job = partial(_check_images, listed.root)
    elif source == "tfrecord":
        keys, classes = complete_keys(records or Records(), noted_keys(path)), read_labels(path)
        jobs = [(name, shard) for name, shards in find_shards(path).items() for shard in shards]
        check_job, first_label = partial(_check_shard, keys, len(classes)), keys.first_label
    else:
        return _check_other(path, source)
    found = run_jobs(check_job, jobs, "checking", console, processes)
    return _summarize(path, classes, found, first_label, problems)


def _check_other(folder: str, source: str) -> Report:
    """Build the source: CIFAR and arrays check themselves when they are read."""
    from paceline.data.build_source import build_source

    try:
        return describe(build_source(Data(source=source, dir=folder)))
    except PassingFault:
        raise
    except UserError as error:
        return Report((), {}, (str(error),))


def _summarize(
    folder: str,
    classes: tuple[str, ...],
    results: Iterable[JobResult],
    first_label: int,
    problems: list[str],
) -> Report:
    labels: dict[str, Counter[int]] = {}
    for result in results:
        labels.setdefault(result.split, Counter()).update(result.labels)
        problems += result.problems
    splits = sorted(labels, key=lambda split: (split != "train", split))
    highest = max((label for counter in labels.values() for label in counter), default=first_label)
    try:
        names = classes or number_classes(highest, first_label)
    except UserError as error:
        return Report((), {split: [] for split in splits}, (*sorted(problems), str(error)))
    counts = {
        split: [labels[split][first_label + label] for label in range(len(names))]
        for split in splits
    }
    empty = [split for split in splits if not labels[split]]
    lines = [f"{folder}: the {split} split has no good example" for split in empty]
    return Report(names, counts, (*sorted(problems), *lines))


def _check_shard(keys: Records, num_classes: int, job: tuple[str, Shard]) -> JobResult:
    found = JobResult(job[0], Counter(), [])
    for offset, data in read_shard(job[1]):
        try:
            if isinstance(data, BadRecord):
                raise ValueError(data.reason)
            image, label = check_example(data, keys, num_classes)
            if not keys.raw_shape:
                inspect_image(image)
            found.labels[label] += 1
        except ValueError as error:
            found.problems.append(str(BadRecord(job[1].path, offset, str(error))))
    return found


def _check_images(root: Path, job: tuple[str, Sequence[LabelledImage]]) -> JobResult:
    found = JobResult(job[0], Counter(), [])
    for path, label in job[1]:
        try:
            inspect_image(read_bytes(Path(root, path)))
            found.labels[label] += 1
        except ValueError as error:
            found.problems.append(f"{Path(root, path)}: {error}")
    return found
