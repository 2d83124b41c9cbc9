"""Read every example of a folder and list what is wrong, for `paceline data check`.

It verifies checksums, labels, and that images can be decoded, and continues after a problem.
Several processes read TFRecords and folders of images, without TensorFlow. Other sources are read
as training reads them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from paceline.errors import PassingFault, UserError
from paceline.experiment.experiment import Data, Records
from paceline.formats.detect import class_table, describe_source, detect
from paceline.formats.image_file import inspect_image, read_image
from paceline.formats.image_folder import LabelledImage, find_images
from paceline.formats.pool import Tick, run_jobs
from paceline.formats.tfrecord.frames import BadRecord, Shard, read_all
from paceline.formats.tfrecord.index import unpacked_shard
from paceline.formats.tfrecord.keys import check_example, complete_keys, fit_keys
from paceline.formats.tfrecord.shards import (
    MOST_UNNAMED_CLASSES,
    TOO_MANY_CLASSES,
    find_shards,
    noted_keys,
    read_labels,
)
from paceline.storage.files import explained

IMAGES_AT_ONCE = 256


@dataclass(frozen=True)
class CheckReport:
    """Good examples by split and class, and one line per problem. Without problems, all is good."""

    classes: tuple[str, ...]
    per_class: dict[str, list[int]]
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the report as text: counts, then problems."""
        totals = {split: [*counts, sum(counts)] for split, counts in self.per_class.items()}
        count = f"{len(self.problems):,} problems" if self.problems else "no problems"
        return [*class_table((*self.classes, "all"), totals), *self.problems, count]


class JobResult(NamedTuple):
    """The labels of the good examples of a split, and one line per problem."""

    split: str
    labels: Counter[int]
    problems: list[str]


def check(
    folder: str | Path,
    split: float = 0.0,
    records: Records | None = None,
    processes: int = 0,
    console: Console | None = None,
) -> CheckReport:
    """Check every example of `folder`; `split` is the share of a folder of images to test on."""
    path = str(Path(folder).expanduser())
    source = detect(path)
    if source == "pictures":
        return _check_pictures(path, split, processes, console)
    if source == "tfrecord":
        return _check_tfrecord(path, records or Records(), processes, console)
    return _check_other(path, source)


def _check_pictures(
    folder: str, split: float, processes: int, console: Console | None
) -> CheckReport:
    folders = find_images(Path(folder), split)
    splits = {"train": folders.train, "test": folders.test}
    jobs = [
        (split, images[start : start + IMAGES_AT_ONCE])
        for split, images in splits.items()
        for start in range(0, len(images), IMAGES_AT_ONCE)
    ]
    total = sum(map(len, splits.values()))
    check_images = partial(_check_images, folder)
    found = run_jobs(check_images, jobs, "checking", total, console, processes=processes)
    return _summarize(folder, folders.classes, list(splits), found)


def _check_tfrecord(
    folder: str, records: Records, processes: int, console: Console | None
) -> CheckReport:
    splits = {
        split: [unpacked_shard(shard, True) for shard in shards]
        for split, shards in find_shards(folder).items()
    }
    shards = [shard for found in splits.values() for shard in found]
    keys = _fit_to_first(complete_keys(records, noted_keys(folder)), shards)
    classes = read_labels(folder)
    jobs = [(split, shard) for split, found in splits.items() for shard in found]
    total = sum(shard.size for shard in shards)
    check_shard = partial(_check_shard, keys, len(classes))
    found = run_jobs(check_shard, jobs, "checking", total, console, processes=processes)
    return _summarize(folder, classes, list(splits), found, keys.first_label)


def _check_other(folder: str, source: str) -> CheckReport:
    """Build the source: CIFAR and arrays check themselves when they are read."""
    from paceline.data.build_source import build_source

    try:
        found = describe_source(build_source(Data(source=source, dir=folder)))
    except PassingFault:
        raise
    except UserError as error:
        return CheckReport((), {}, (str(error),))
    return CheckReport(found.classes, found.per_class, ())


def _summarize(
    folder: str,
    classes: tuple[str, ...],
    splits: list[str],
    results: Iterable[JobResult],
    first_label: int = 0,
) -> CheckReport:
    labels: dict[str, Counter[int]] = {split: Counter() for split in splits}
    problems = []
    for result in results:
        labels[result.split] += result.labels
        problems += result.problems
    highest = max((label for counter in labels.values() for label in counter), default=first_label)
    if not classes and highest - first_label >= MOST_UNNAMED_CLASSES:
        problems.append(f"{folder}: the highest label is {highest}; {TOO_MANY_CLASSES}")
        return CheckReport((), {split: [] for split in splits}, tuple(problems))
    names = classes or tuple(str(label) for label in range(highest - first_label + 1))
    counts = {
        split: [counter[first_label + label] for label in range(len(names))]
        for split, counter in labels.items()
    }
    empty = [
        f"{folder}: the {split} split has no good example" for split in splits if not labels[split]
    ]
    return CheckReport(names, counts, (*sorted(problems), *empty))


def _check_shard(keys: Records, num_classes: int, job: tuple[str, Shard], tick: Tick) -> JobResult:
    split, shard = job
    found = JobResult(split, Counter(), [])
    with explained("read", Path(shard.path)), open(shard.path, "rb") as file:
        for offset, data in read_all(file, shard.given, shard.size, tick):
            try:
                if isinstance(data, BadRecord):
                    raise ValueError(data.reason)
                image, label = check_example(data, keys, num_classes)
                if not keys.raw_shape:
                    _check_image(image)
                found.labels[label] += 1
            except ValueError as error:
                found.problems.append(str(BadRecord(shard.given, offset, str(error))))
    return found


def _check_images(root: str, job: tuple[str, Sequence[LabelledImage]], tick: Tick) -> JobResult:
    split, images = job
    found = JobResult(split, Counter(), [])
    for path, label in images:
        tick(1)
        try:
            _check_image(read_image(Path(root, path)))
            found.labels[label] += 1
        except ValueError as error:
            found.problems.append(f"{Path(root, path)}: {error}")
    return found


def _check_image(data: bytes) -> None:
    try:
        inspect_image(data)
    except ValueError as error:
        raise ValueError(f"the image cannot be decoded ({error})") from None


def _fit_to_first(keys: Records, shards: Sequence[Shard]) -> Records:
    """Fit the keys to the first record that can be read. Without one, each record is reported."""
    for shard in shards:
        with contextlib.suppress(BadRecord):
            return fit_keys(keys, shard)
    return keys
