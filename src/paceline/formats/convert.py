"""Convert CIFAR and folders of images to sharded TFRecords with ImageNet's names and keys.

Images are stored unchanged. The same inputs give the same bytes on any number of processes: the
order is that of a hash of each path. An interrupted conversion continues with the next shard: a
shard gets its final name only when it is whole.
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

from paceline.errors import UserError
from paceline.formats.cifar import Layout, check_complete, read_class_names, read_splits
from paceline.formats.conversion_folder import (
    WORK,
    exclusive_folder,
    finish,
    is_done,
    is_written,
    note_shard,
)
from paceline.formats.conversion_inputs import ConversionInputs, find_inputs
from paceline.formats.image_file import inspect_image, read_image
from paceline.formats.image_folder import LabelledImage
from paceline.formats.pool import Tick, run_jobs
from paceline.formats.tfrecord import example
from paceline.formats.tfrecord.frames import framed
from paceline.formats.tfrecord.keys import IMAGE_KEY, LABEL_KEY
from paceline.formats.tfrecord.shards import NOTES, read_notes
from paceline.job import Spark
from paceline.storage.backends import Store, cached
from paceline.storage.data_cache import put_folder
from paceline.storage.files import explained, replacing

SHARD_BYTES = 64 << 20
IMAGENET_SHARDS = {"train": 1024, "validation": 128}
MOST_SHARDS, FEW_SHARDS, SMALL_SHARD = 1024, 8, 128
"""A small data set has up to 8 shards, each of at least 128 images, for several processes."""
CIFAR_KEYS = {
    "image_key": "image",
    "label_key": "label",
    "first_label": 0,
    "raw_shape": [32, 32, 3],
    "raw_order": "channels_first",
}
"""The records of cifar10_estimator: 3072 bytes, channels first."""
CIFAR_RECORD_BYTES = 3100


@dataclass(frozen=True)
class ShardJob:
    """A shard to write: everything that a process needs."""

    name: str
    root: str
    out: str
    images: tuple[LabelledImage, ...]
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
    """Convert `src` into the folder `out`; return the content of its dataset.json.

    0 shards: by the size of the data, 1024 and 128 for ImageNet. First label -1: 1 for ImageNet,
    else 0. `names_file` has lines of a class and its name in words. With `spark`, the tasks of a
    Spark cluster write the shards of images."""
    folder, target = Path(src).expanduser(), Path(out).expanduser()
    console = console or Console(stderr=True)
    if min(shards, validation_shards, processes) < 0 or first_label not in (-1, 0, 1):
        allowed = "must be 0 (chosen for you) or more; first-label must be 0 or 1"
        raise UserError(f"shards, validation-shards and processes {allowed}")
    if spark and processes:
        raise UserError("--processes is for --on local; on Spark, executors and their cores decide")
    inputs = find_inputs(folder, split, labels_file)
    wanted = {"train": shards, "validation": validation_shards}
    first = int(inputs.is_imagenet) if first_label < 0 else first_label
    with exclusive_folder(target):
        if inputs.cifar:
            return _convert_cifar(*inputs.cifar, target, wanted, console)
        jobs = _plan_jobs(inputs, folder, target, wanted, names_file, first)
        settings = _settings(jobs, split, names_file)
        if is_done(target, settings, console):
            return read_notes(str(target))
        _write_missing(jobs, target, processes, spark, console)
        keys = {"image_key": IMAGE_KEY, "label_key": LABEL_KEY, "first_label": first}
        return finish(target, [job.name for job in jobs], inputs.classes, settings, keys, console)


def convert_remote(src: str | Path, url: str, **settings: Any) -> dict[str, Any]:
    """Convert into the cache and copy the result to `url`, dataset.json last. An interrupted
    conversion continues."""
    here = cached("converted", url)
    if not here.exists() and Store(url).files():
        raise UserError(f"{url} is not empty; give a new folder")
    summary = convert(src, here, **settings)
    put_folder(here, url, NOTES)
    shutil.rmtree(here)
    return summary


def _plan_jobs(
    inputs: ConversionInputs,
    root: Path,
    out: Path,
    wanted: dict[str, int],
    names_file: str,
    first_label: int,
) -> list[ShardJob]:
    texts = _read_names(names_file, inputs.classes)
    jobs = []
    for split, images in inputs.splits.items():
        mixed = sorted(images, key=lambda image: hashlib.sha256(os.fsencode(image.path)).digest())
        with explained("read", root):
            size = sum(os.stat(root / image.path).st_size for image in mixed)
        usual = IMAGENET_SHARDS[split] if inputs.is_imagenet else _shard_count(len(mixed), size)
        for name, (start, stop) in _ranges(split, len(mixed), wanted[split] or usual):
            part = tuple(mixed[start:stop])
            jobs.append(
                ShardJob(name, str(root), str(out), part, inputs.classes, texts, first_label)
            )
    return jobs


def _read_names(file: str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each class from lines such as `n01440764 tench, Tinca tinca`. A class
    without a line keeps its own name."""
    if not file:
        return tuple(classes)
    with explained("read", Path(file)):
        text = Path(file).expanduser().read_text(errors="replace")
    lines = [line.split(None, 1) for line in text.split("\n")]
    names = {line[0]: line[1].strip() for line in lines if len(line) == 2}
    return tuple(names.get(name, name) for name in classes)


def _shard_count(records: int, size: int) -> int:
    by_size, by_records = -(-size // SHARD_BYTES), min(FEW_SHARDS, records // SMALL_SHARD)
    return max(1, min(MOST_SHARDS, max(by_size, by_records)))


def _ranges(split: str, records: int, count: int) -> list[tuple[str, tuple[int, int]]]:
    """Return the name of each shard, with the first record in it and the first after it."""
    if count > records:
        raise UserError(f"{count} {split} shards are too many for {records} images; give fewer")
    bounds = [records * number // count for number in range(count + 1)]
    return [
        (f"{split}-{number:05d}-of-{count:05d}", (bounds[number], bounds[number + 1]))
        for number in range(count)
    ]


def _settings(jobs: Sequence[ShardJob], split: float, names_file: str) -> dict[str, Any]:
    """Return what identifies a conversion, with a digest of every image's path, label and size
    and of the shard that has it."""
    digest = hashlib.sha256()
    for job in jobs:
        for path, label in job.images:
            size = os.stat(os.path.join(job.root, path)).st_size
            digest.update(f"{job.name} {label} {size} ".encode() + os.fsencode(path) + b"\n")
    counts = {
        f"{name}_shards": sum(job.name.startswith(name) for job in jobs)
        for name in ("train", "validation")
    }
    return {
        "source": str(Path(jobs[0].root).resolve()),
        "split": split,
        "first_label": jobs[0].first_label,
        "names": names_file,
        "pictures": digest.hexdigest()[:32],
        **counts,
    }


def _write_missing(
    jobs: Sequence[ShardJob], out: Path, processes: int, spark: Spark | None, console: Console
) -> None:
    root, out = Path(jobs[0].root).resolve(), out.resolve()
    waiting = [
        replace(job, root=str(root), out=str(out)) for job in jobs if not is_written(out, job.name)
    ]
    if len(waiting) < len(jobs):
        done = f"{len(jobs) - len(waiting)} of {len(jobs)} shards are already written"
        console.print(f"continuing: {done}", soft_wrap=True)
    what, total = "converting", sum(len(job.images) for job in waiting)
    if spark:
        from paceline.places.spark.jobs import run_jobs_on_spark

        log, folders = out / WORK / "spark.log", [root, out / WORK]
        written = run_jobs_on_spark(
            spark, log, folders, _write_images, waiting, what, total, console
        )
    else:
        written = run_jobs(_write_images, waiting, processes, what, total, console)
    for _ in written:
        pass


def _write_images(job: ShardJob, tick: Tick) -> None:
    """Write one shard of images, and the note of what was left out."""
    out, rejected = Path(job.out, job.name), []
    with explained("write", out), replacing(out) as file:
        for image in job.images:
            tick(1)
            try:
                file.write(framed(_encode_image(job, image)))
            except ValueError as error:
                rejected.append({"file": image.path, "shard": job.name, "reason": str(error)})
        if len(rejected) == len(job.images):
            found = f"all {len(rejected)} images for {job.name} are bad, such as {rejected[0]}"
            raise UserError(f"{found}; give fewer shards")
        note_shard(out.parent, job.name, len(job.images) - len(rejected), rejected)


def _encode_image(job: ShardJob, image: LabelledImage) -> bytes:
    data = read_image(Path(job.root, image.path))
    facts = inspect_image(data)
    return example.encode(
        {
            IMAGE_KEY: data,
            LABEL_KEY: image.label + job.first_label,
            "image/class/synset": os.fsencode(job.classes[image.label]),
            "image/class/text": os.fsencode(job.texts[image.label]),
            "image/channels": facts.channels,
            "image/colorspace": facts.colorspace,
            "image/filename": os.fsencode(os.path.basename(image.path)),
            "image/format": facts.format,
            "image/height": facts.height,
            "image/width": facts.width,
        }
    )


def _convert_cifar(
    layout: Layout, place: Path, out: Path, wanted: dict[str, int], console: Console
) -> dict[str, Any]:
    """Convert in this process, within seconds. Labels and bytes are those of the files."""
    check_complete(layout, place, f"fetch {layout.source} again into a new folder")
    counts = {f"{split}_shards": count for split, count in wanted.items()}
    settings = {"source": str(place.resolve()), **counts}
    if is_done(out, settings, console):
        return read_notes(str(out))
    names = []
    for split, (images, labels) in zip(wanted, read_splits(layout, place), strict=True):
        usual = _shard_count(len(labels), len(labels) * CIFAR_RECORD_BYTES)
        for name, (start, stop) in _ranges(split, len(labels), wanted[split] or usual):
            with explained("write", out / name), replacing(out / name) as file:
                for pixels, label in zip(images[start:stop], labels[start:stop], strict=True):
                    features = {"image": pixels.transpose(2, 0, 1).tobytes(), "label": int(label)}
                    file.write(framed(example.encode(features)))
            note_shard(out, name, stop - start, [])
            names.append(name)
    classes = read_class_names(layout, place)
    return finish(out, names, classes, settings, CIFAR_KEYS, console)
