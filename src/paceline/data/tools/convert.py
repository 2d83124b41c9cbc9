"""CIFAR and folders of pictures -> sharded TFRecords with ImageNet's names and keys. Pictures are stored as they are.

The same originals give the same bytes on any number of processes: the order is that of a hash of each path. A conversion that
was cut off goes on, shard by shard: a shard has its final name only when it is whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.config.job import Spark
from paceline.data.remote import put_folder
from paceline.data.sources import example
from paceline.data.sources.pictures import Picture
from paceline.data.sources.records import framed
from paceline.data.sources.shards import IMAGE_KEY, LABEL_KEY, NOTES, read_notes
from paceline.data.tools.conversion_folder import (
    WORK,
    finish,
    is_done,
    is_written,
    note_shard,
    working_in,
)
from paceline.data.tools.conversion_inputs import Originals, find_originals
from paceline.data.tools.image_file import examine
from paceline.data.tools.pool import Tick, run_jobs
from paceline.errors import UserError
from paceline.run_folder.folder import explained, replacing
from paceline.run_folder.storage import Store, cached

SHARD_BYTES = 64 << 20
IMAGENET_SHARDS = {"train": 1024, "validation": 128}
MOST_SHARDS, FEW_SHARDS, SMALL_SHARD = 1024, 8, 128
"""A small data set has up to 8 shards, so that several processes have work; each of 128 pictures or more."""
CIFAR_KEYS = {
    "image_key": "image",
    "label_key": "label",
    "first_label": 0,
    "raw_shape": [32, 32, 3],
    "raw_order": "channels_first",
}
"""002's records: 3072 bytes, channels first."""


@dataclass(frozen=True)
class ShardJob:
    """A shard to be written: all that a process needs."""

    name: str
    root: str
    out: str
    pictures: tuple[Picture, ...]
    classes: tuple[str, ...]
    texts: tuple[str, ...]
    first_label: int


def convert(
    src: str | Path,
    out: str | Path,
    *,
    split: float = 0.0,
    shards: int = 0,
    validation_shards: int = 0,
    processes: int = 0,
    labels_file: str = "",
    names_file: str = "",
    first_label: int = -1,
    spark: Spark | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Convert `src` into the folder `out` and give what dataset.json says of it. 0 shards: by the size of the data, of
    ImageNet its usual 1024 and 128; first label -1: 1 for ImageNet, else 0; `names_file` has lines of a class and what it is
    called. With `spark`, shards of pictures are written by the tasks of a Spark cluster."""
    folder, target, console = (
        Path(src).expanduser(),
        Path(out).expanduser(),
        console or Console(stderr=True),
    )
    if min(shards, validation_shards, processes) < 0 or first_label not in (-1, 0, 1):
        raise UserError(
            "shards, validation-shards and processes are 0 (chosen for you) or more; first-label is 0 or 1"
        )
    if spark and processes:
        raise UserError("--processes is for --on local; on Spark, executors and their cores decide")
    originals = find_originals(folder, split, labels_file)
    with working_in(target):
        if originals.cifar:
            return _convert_cifar(originals, target, shards, validation_shards, console)
        texts = _read_names(names_file, originals.classes)
        first = int(originals.is_imagenet) if first_label < 0 else first_label
        jobs = _plan_jobs(
            originals,
            folder,
            target,
            {"train": shards, "validation": validation_shards},
            texts,
            first,
        )
        settings = {
            "source": str(folder.resolve()),
            "split": split,
            "first_label": first,
            "names": names_file,
            "pictures": _digest(jobs),
        }
        settings |= {
            f"{name}_shards": sum(job.name.startswith(name) for job in jobs)
            for name in originals.splits
        }
        if is_done(target, settings, console):
            return read_notes(str(target))
        waiting = [job for job in jobs if not is_written(target, job.name)]
        if len(waiting) < len(jobs):
            console.print(
                f"going on: {len(jobs) - len(waiting)} of {len(jobs)} shards are already written",
                soft_wrap=True,
            )
        _write_all(waiting, processes, spark, folder, target, console)
        keys = {"image_key": IMAGE_KEY, "label_key": LABEL_KEY, "first_label": first}
        return finish(
            target, [job.name for job in jobs], originals.classes, settings, keys, console
        )


def convert_remote(src: str | Path, url: str, **settings: Any) -> dict[str, Any]:
    """Convert into the cache and put the result to `url`, dataset.json last; a conversion that was cut off goes on."""
    here = cached("converted", url)
    if not here.exists() and Store(url).files():
        raise UserError(f"{url} is not empty; give a new folder")
    summary = convert(src, here, **settings)
    put_folder(here, url, NOTES)
    shutil.rmtree(here)
    return summary


def _write_all(
    jobs: Sequence[ShardJob],
    processes: int,
    spark: Spark | None,
    folder: Path,
    out: Path,
    console: Console,
) -> None:
    what, total = "converting", sum(len(job.pictures) for job in jobs)
    if spark:
        from paceline.places.spark.jobs import run_jobs_on_spark

        jobs = [replace(job, root=str(folder.resolve()), out=str(out.resolve())) for job in jobs]
        folders = [folder.resolve(), out.resolve() / WORK]
        written = run_jobs_on_spark(
            spark, out / WORK / "spark.log", folders, _write_pictures, jobs, what, total, console
        )
    else:
        written = run_jobs(_write_pictures, jobs, processes, what, total, console)
    for _ in written:
        pass


def _plan_jobs(
    originals: Originals,
    root: Path,
    out: Path,
    wanted: dict[str, int],
    texts: Sequence[str],
    first_label: int,
) -> list[ShardJob]:
    jobs = []
    for split, pictures in originals.splits.items():
        mixed = sorted(
            pictures, key=lambda picture: hashlib.sha256(os.fsencode(picture.path)).digest()
        )
        with explained("read", root):
            size = sum(os.stat(root / picture.path).st_size for picture in mixed)
        count = wanted[split] or (
            IMAGENET_SHARDS[split] if originals.is_imagenet else _shard_count(len(mixed), size)
        )
        for name, (start, stop) in _ranges(split, len(mixed), count):
            part = tuple(mixed[start:stop])
            jobs.append(
                ShardJob(
                    name, str(root), str(out), part, originals.classes, tuple(texts), first_label
                )
            )
    return jobs


def _shard_count(records: int, size: int) -> int:
    return max(
        1, min(MOST_SHARDS, max(-(-size // SHARD_BYTES), min(FEW_SHARDS, records // SMALL_SHARD)))
    )


def _ranges(split: str, records: int, count: int) -> list[tuple[str, tuple[int, int]]]:
    if count > records:
        raise UserError(
            f"{count} {split} shards for {records} pictures; a shard has one or more: give fewer"
        )
    bounds = [records * number // count for number in range(count + 1)]
    return [
        (f"{split}-{number:05d}-of-{count:05d}", (bounds[number], bounds[number + 1]))
        for number in range(count)
    ]


def _write_pictures(job: ShardJob, tick: Tick) -> None:
    """Write one shard. What was left out is noted before the shard gets its name, so that a whole shard always has its note."""
    rejected: list[dict[str, str]] = []
    with explained("write", Path(job.out, job.name)), replacing(Path(job.out, job.name)) as file:
        for picture in job.pictures:
            tick(1)
            try:
                file.write(framed(_encode_picture(job, picture)))
            except ValueError as error:
                rejected.append({"file": picture.path, "shard": job.name, "reason": str(error)})
        if len(rejected) == len(job.pictures):
            raise UserError(
                f"all {len(rejected)} pictures for {job.name} are bad, such as {rejected[0]}; give fewer shards"
            )
        note_shard(Path(job.out), job.name, len(job.pictures) - len(rejected), rejected)


def _encode_picture(job: ShardJob, picture: Picture) -> bytes:
    try:
        data = Path(job.root, picture.path).read_bytes()
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    facts, name = examine(data), job.classes[picture.label]
    return example.encode(
        {
            IMAGE_KEY: data,
            LABEL_KEY: picture.label + job.first_label,
            "image/class/synset": os.fsencode(name),
            "image/class/text": os.fsencode(job.texts[picture.label]),
            "image/channels": facts.channels,
            "image/colorspace": facts.colorspace,
            "image/filename": os.fsencode(os.path.basename(picture.path)),
            "image/format": facts.format,
            "image/height": facts.height,
            "image/width": facts.width,
        }
    )


def _convert_cifar(
    originals: Originals, out: Path, shards: int, validation_shards: int, console: Console
) -> dict[str, Any]:
    """In this process: it takes seconds. Labels and bytes are as in the files."""
    from paceline.data.sources.cifar import _read_file, _read_names, missing_files

    assert originals.cifar is not None
    layout, place = originals.cifar
    if missing := missing_files(layout, place):
        raise UserError(
            f"{place} has no {', '.join(missing)}; fetch {layout.source} again into a new folder"
        )
    classes, names, total = _read_names(layout, place / layout.names), [], 0
    settings = {
        "source": str(place.resolve()),
        "train_shards": shards,
        "validation_shards": validation_shards,
    }
    if is_done(out, settings, console):
        return read_notes(str(out))
    for split, files, wanted in (
        ("train", layout.train, shards),
        ("validation", (layout.test,), validation_shards),
    ):
        examples = [
            pair for file in files for pair in zip(*_read_file(layout, place / file), strict=True)
        ]
        total = len(examples)
        for name, (start, stop) in _ranges(
            split, total, wanted or _shard_count(total, total * 3100)
        ):
            with explained("write", out / name), replacing(out / name) as file:
                for pixels, label in examples[start:stop]:
                    file.write(
                        framed(
                            example.encode(
                                {"image": pixels.transpose(2, 0, 1).tobytes(), "label": int(label)}
                            )
                        )
                    )
            note_shard(out, name, stop - start, [])
            names.append(name)
    return finish(out, names, classes, settings, CIFAR_KEYS, console)


def _read_names(file: str, classes: Sequence[str]) -> tuple[str, ...]:
    """What each class is called: lines such as `n01440764 tench, Tinca tinca`; a class without a line keeps its own name."""
    if not file:
        return tuple(classes)
    with explained("read", Path(file)):
        lines = [
            line.split(None, 1)
            for line in Path(file).expanduser().read_text(errors="replace").splitlines()
        ]
    names = {line[0]: line[1].strip() for line in lines if len(line) == 2}
    return tuple(names.get(name, name) for name in classes)


def _digest(jobs: Sequence[ShardJob]) -> str:
    """Of every picture's path, label and size, and of the shard it goes to."""
    digest = hashlib.sha256()
    for job in jobs:
        for picture in job.pictures:
            size = os.stat(os.path.join(job.root, picture.path)).st_size
            digest.update(
                f"{job.name} {picture.label} {size} ".encode() + os.fsencode(picture.path) + b"\n"
            )
    return digest.hexdigest()[:32]
