"""Every example of a folder looked at: checksums, whether pictures can be decoded, labels; for `paceline data check`.

It stops at nothing and lists what is wrong. TFRecords and folders of pictures are read by several processes without
TensorFlow; other sources are read as training reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from paceline.config.experiment import Data
from paceline.data.sources import example
from paceline.data.sources.index import ShardIndex, judge, unpacked_shard
from paceline.data.sources.pictures import Picture, find_pictures
from paceline.data.sources.records import BadRecord, Shard, read_all
from paceline.data.sources.shards import (
    Keys,
    choose_keys,
    find_shards,
    fit_keys,
    read_labels,
    read_notes,
)
from paceline.data.sources.tfrecord import label_fault
from paceline.data.tools.image_file import examine
from paceline.data.tools.info import describe_source, detect
from paceline.data.tools.pool import Tick, run_jobs
from paceline.errors import UserError

PICTURES_AT_ONCE = 256


@dataclass(frozen=True)
class Report:
    """Good examples by split and class, and one line for each problem; without problems the folder is sound."""

    folder: str
    source: str
    classes: tuple[str, ...]
    per_class: dict[str, list[int]]
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people to read: counts, then problems."""
        width = max(len(name) for name in ("class", *self.classes))
        lines = [f"{'class':{width}}" + "".join(f"{split:>12}" for split in self.per_class)]
        for label, name in enumerate(self.classes):
            lines.append(
                f"{name:{width}}"
                + "".join(f"{counts[label]:>12,}" for counts in self.per_class.values())
            )
        lines.append(
            f"{'all':{width}}"
            + "".join(f"{sum(counts):>12,}" for counts in self.per_class.values())
        )
        return [
            *lines,
            *self.problems,
            f"{len(self.problems):,} problems" if self.problems else "no problems",
        ]


@dataclass(frozen=True)
class Job:
    """A shard, or some pictures, of one split. Of 0 classes any label is right."""

    split: str
    keys: Keys = field(default_factory=lambda: Keys("", "", 0))
    num_classes: int = 0
    shard: Shard | None = None
    root: str = ""
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Found:
    split: str
    labels: Counter
    problems: list[str]


def check(
    folder: str | Path, data: Data | None = None, processes: int = 0, console: Console | None = None
) -> Report:
    """Look at every example of `folder`; `data` may give keys, the first label or the split."""
    data, place = data or Data(), str(Path(folder).expanduser())
    source = detect(place)
    if source == "pictures":
        folders = find_pictures(Path(place), data.split)
        splits = {"train": folders.train, "test": folders.test}
        jobs = [
            job for name, pictures in splits.items() for job in _picture_jobs(name, place, pictures)
        ]
        return _gather(place, source, folders.classes, list(splits), jobs, 0, processes, console)
    if source == "tfrecord":
        shards = {
            split: [unpacked_shard(shard, True) for shard in found]
            for split, found in find_shards(place).items()
        }
        keys, classes = _fit(choose_keys(data, read_notes(place)), shards), read_labels(place)
        jobs = [
            Job(split, keys, len(classes), shard)
            for split, found in shards.items()
            for shard in found
        ]
        return _gather(
            place, source, classes, list(shards), jobs, keys.first_label, processes, console
        )
    return _check_other(place, source, data)


def _gather(
    folder: str,
    source: str,
    classes: tuple[str, ...],
    splits: list[str],
    jobs: Sequence[Job],
    first_label: int,
    processes: int,
    console: Console | None,
) -> Report:
    total = sum(job.shard.size if job.shard else len(job.pictures) for job in jobs)
    found = list(run_jobs(_look_at, jobs, processes, "checking", total, console))
    labels = {
        split: sum((each.labels for each in found if each.split == split), Counter())
        for split in splits
    }
    highest = max((label for counter in labels.values() for label in counter), default=first_label)
    names = classes or tuple(str(label) for label in range(highest - first_label + 1))
    counts = {
        split: [counter[first_label + label] for label in range(len(names))]
        for split, counter in labels.items()
    }
    problems = sorted(problem for each in found for problem in each.problems)
    problems += [
        f"{folder}: the {split} split has no good example" for split in splits if not labels[split]
    ]
    return Report(folder, source, names, counts, tuple(problems))


def _look_at(job: Job, tick: Tick) -> Found:
    return _look_at_shard(job, job.shard, tick) if job.shard else _look_at_pictures(job, tick)


def _look_at_shard(job: Job, shard: Shard, tick: Tick) -> Found:
    found, reached = Found(job.split, Counter(), []), 0
    if shard.size == 0:
        found.problems.append(
            str(BadRecord(shard.path, 0, "the shard is empty (0 bytes): it ends"))
        )
    with open(shard.path, "rb") as file:
        for offset, data in read_all(file, shard.path, shard.size):
            tick(offset - reached)
            reached = offset
            if isinstance(data, BadRecord):
                found.problems.append(str(data))
                continue
            label = _look_at_record(data, job)
            if isinstance(label, str):
                found.problems.append(str(BadRecord(shard.path, offset, label)))
            else:
                found.labels[label] += 1
    return found


def _look_at_record(data: bytes, job: Job) -> int | str:
    """The label of a good record, or what is wrong with it."""
    keys, label = job.keys, judge(data, job.keys.image_key, job.keys.label_key)
    if isinstance(label, str):
        return label
    if label < keys.first_label or (
        job.num_classes and label >= keys.first_label + job.num_classes
    ):
        return label_fault(label, keys, job.num_classes)
    picture = example.decode(data)[keys.image_key][0]
    assert isinstance(picture, bytes)
    if keys.raw_shape:
        fits = len(picture) == keys.raw_bytes
        return (
            label
            if fits
            else f"a picture has {len(picture)} bytes, not {keys.raw_bytes} as {keys.raw_shape} needs,"
        )
    try:
        examine(picture)
    except ValueError as error:
        return f"a picture cannot be decoded ({error})"
    return label


def _look_at_pictures(job: Job, tick: Tick) -> Found:
    found = Found(job.split, Counter(), [])
    for path, label in job.pictures:
        tick(1)
        file = Path(job.root, path)
        try:
            examine(file.read_bytes())
            found.labels[label] += 1
        except (ValueError, OSError) as error:
            found.problems.append(f"{file}: the picture cannot be decoded ({error})")
    return found


def _picture_jobs(split: str, root: str, pictures: Sequence[Picture]) -> list[Job]:
    starts = range(0, len(pictures), PICTURES_AT_ONCE)
    return [
        Job(split, root=root, pictures=tuple(pictures[start : start + PICTURES_AT_ONCE]))
        for start in starts
    ]


def _fit(keys: Keys, shards: dict[str, list[Shard]]) -> Keys:
    """The keys compared with the first record that can be read; where none can, each record tells its own fault."""
    for shard in [shard for found in shards.values() for shard in found]:
        try:
            return fit_keys(keys, ShardIndex(shard, np.zeros(1, np.int64)))
        except BadRecord:
            continue
    return keys


def _check_other(folder: str, source: str, data: Data) -> Report:
    """CIFAR and arrays check themselves when they are read."""
    import dataclasses

    from paceline.data import build_source

    try:
        facts = describe_source(build_source(dataclasses.replace(data, source=source, dir=folder)))
    except UserError as error:
        return Report(folder, source, (), {}, (str(error),))
    counts = {name: split["per_class"] for name, split in facts["splits"].items()}
    return Report(folder, source, tuple(facts["classes"]), counts, ())
