"""Convert CIFAR, folders of images and Parquet to TFRecords with ImageNet's names and keys.

Images are stored unchanged. The same inputs give the same bytes on any number of processes: the
order is that of a hash of each path. A shard gets its final name only when it is complete, so an
interrupted conversion continues with the shards that are missing. Meanwhile, `.conversion/` keeps
what identifies the conversion, and which images of a shard are bad. `dataset.json` is written last.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.data.digests import digest_of
from paceline.errors import UserError
from paceline.experiment.experiment import Records
from paceline.experiment.fields import Json
from paceline.formats.cifar import Layout, find_layout, read_splits
from paceline.formats.detect import detect
from paceline.formats.image_folder import inspect_image
from paceline.formats.image_list import LabelledImage, find_images
from paceline.formats.pool import run_jobs
from paceline.formats.source_folder import read_bytes
from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.record import framed
from paceline.formats.tfrecord.shards import IMAGE_KEY, LABEL_KEY, LABELS, NOTES, read_notes
from paceline.storage.cache import put_folder
from paceline.storage.files import explained, read_json, replacing, to_log, write_json
from paceline.storage.locations import cached, is_remote
from paceline.storage.remote import open_to_write

WORK, SETTINGS, REJECTED = ".conversion", "settings.json", "rejected.jsonl"
MOST_SHARDS, USUAL_SHARD = 1024, 1024
FEW_SHARDS, SMALL_SHARD = 8, 128
"""A small data set has up to 8 shards, each of at least 128 images, for several processes."""
CIFAR_KEYS = {
    "image_key": "image",
    "label_key": "label",
    "first_label": 0,
    "raw_shape": [32, 32, 3],
    "raw_order": "channels_first",
}
"""The records of cifar10_estimator: 3072 bytes, channels first."""


@dataclass(frozen=True)
class Conversion:
    """The examples of each shard, how one becomes a record, what `dataset.json` says of them, and
    what identifies the inputs."""

    shards: dict[str, Sequence[Any]]
    encode: Callable[[Any], bytes]
    classes: tuple[str, ...]
    keys: Json
    identity: str


def convert(
    src: str | Path,
    out: str | Path,
    split: float = 0.0,
    shards: int = 0,
    first_label: int = 0,
    processes: int = 0,
) -> Json:
    """Convert `src` into the folder or URL `out`; return the content of its dataset.json.

    0 shards mean a number by the number of images, 0 processes one per core. For a URL, the cache
    is written first and then copied, dataset.json last.
    """
    folder = Path(src).expanduser()
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    kind = detect(folder, "pictures")
    if cifar := find_layout(kind, folder):
        plan, processes = _plan_cifar(*cifar, split, shards), 1  # it takes seconds
    elif kind == "parquet":
        from paceline.formats.parquet import plan_parquet

        plan = plan_parquet(str(folder.resolve()), Records())
    elif kind == "pictures":
        plan = _plan_images(folder.resolve(), split, shards, first_label)
    else:
        raise UserError(f"{folder} has {kind}, which training reads directly; do not convert it")
    if not is_remote(str(out)):
        return write(plan, Path(out).expanduser(), processes)
    target = cached("converted", str(out))
    if not target.exists() and open_to_write(str(out)).files():
        raise UserError(f"{out} is not empty; choose a new folder")
    notes = write(plan, target, processes)
    put_folder(target, str(out), NOTES)
    shutil.rmtree(target)
    return notes


def write(plan: Conversion, out: Path, processes: int) -> Json:
    """Write the shards that are missing in `out`; return the content of its dataset.json."""
    if _is_finished(out, plan.identity):
        to_log(f"{out} is already converted")
        return read_notes(str(out))
    waiting = [job for job in plan.shards.items() if not (out / job[0]).exists()]
    if len(waiting) < len(plan.shards):
        done = f"{len(plan.shards) - len(waiting)} of {len(plan.shards)} shards"
        to_log(f"continuing: {done} are already written")
    write = partial(_write_shard, out, plan.encode)
    for _ in run_jobs(write, waiting, "converting", processes):
        pass
    return _finish(out, plan)


def _is_finished(out: Path, identity: str) -> bool:
    """Return whether this conversion is already finished here; else start or continue it. If the
    folder belongs to something else, raise UserError."""
    settings, notes = out / WORK / SETTINGS, read_notes(str(out))
    with explained("write", out):
        earlier = notes or (read_json(settings, "choose a new folder") if settings.exists() else {})
        if earlier and earlier.get("conversion") != identity:
            advice = "choose a new folder, or the same images and settings to continue"
            raise UserError(f"{out} has a conversion of different images or settings; {advice}")
        if not earlier:
            if out.exists() and any(entry.name[0] != "." for entry in out.iterdir()):
                raise UserError(
                    f"{out} is not empty, and no conversion began there; choose a new folder"
                )
            settings.parent.mkdir(parents=True, exist_ok=True)
            write_json(settings, {"conversion": identity})
    return bool(notes)


def _write_shard(out: Path, encode: Callable[[Any], bytes], job: tuple[str, Sequence[Any]]) -> None:
    """Write one shard. The list of its bad images is written before the shard gets its name."""
    (name, examples), rejected = job, []
    with explained("write", out / name), replacing(out / name) as file:
        for each in examples:
            try:
                file.write(framed(encode(each)))
            except ValueError as error:
                rejected.append({"file": each.path, "shard": name, "reason": str(error)})
        if len(rejected) == len(examples):
            found = f"all {len(rejected)} images for {name} are bad, such as {rejected[0]}"
            raise UserError(f"{found}; fix them, or use fewer shards")
        write_json(out / WORK / f"{name}.json", {"rejected": rejected})


def _finish(out: Path, plan: Conversion) -> Json:
    """Write labels.txt, the list of rejected images and, last, dataset.json; return its content."""
    rejected, counts = [], Counter[str]()
    for name, examples in plan.shards.items():
        bad = read_json(out / WORK / f"{name}.json", "choose a new folder")["rejected"]
        counts[name.split("-")[0]] += len(examples) - len(bad)
        rejected += bad
    with explained("write", out):
        with replacing(out / LABELS) as file:
            file.write(b"".join(os.fsencode(name) + b"\n" for name in plan.classes))
        if rejected:
            with replacing(out / REJECTED) as file:
                file.write("".join(json.dumps(line) + "\n" for line in rejected).encode())
        for unfinished in out.glob(".*-of-*.tmp"):  # of killed processes
            unfinished.unlink(missing_ok=True)
    facts = {"classes": len(plan.classes), "records": counts, "rejected": len(rejected)}
    summary = {"format": 1, **plan.keys, **facts, "conversion": plan.identity}
    write_json(out / NOTES, summary)
    shutil.rmtree(out / WORK, ignore_errors=True)
    found = " and ".join(f"{count:,} {split}" for split, count in counts.items()) + " images"
    left_out = f"; {len(rejected):,} bad images were left out, see {out / REJECTED}"
    to_log(f"{out} has {found} of {len(plan.classes):,} classes{left_out if rejected else ''}")
    return summary


def _plan_cifar(layout: Layout, folder: Path, split: float, train_shards: int) -> Conversion:
    if split:
        raise UserError(
            f"{folder} has {layout.source}, which is split already; pass no --data.split"
        )
    train, test = (list(zip(*examples, strict=True)) for examples in read_splits(layout, folder))
    shards = divide({"train": train, "test": test}, train_shards)
    identity = f"{layout.source} in {len(shards)} shards"
    return Conversion(shards, _encode_cifar, layout.classes, CIFAR_KEYS, identity)


def _plan_images(root: Path, split: float, train_shards: int, first: int) -> Conversion:
    found = find_images(root, split)
    root, classes, splits = found[:3]
    if found.problems:
        raise UserError(found.problems[0])
    for images in splits.values():
        images.sort(key=lambda image: hashlib.sha256(os.fsencode(image.path)).digest())
    shards = divide(splits, train_shards)
    encode = partial(_encode_image, root, classes, first)
    keys = {"image_key": IMAGE_KEY, "label_key": LABEL_KEY, "first_label": first}
    identity = digest_of([f"{first} {shards}".encode(errors="surrogateescape")])
    return Conversion(shards, encode, classes, keys, identity)


def divide(splits: Mapping[str, Sequence[Any]], train_shards: int) -> dict[str, Sequence[Any]]:
    """Return the examples of each shard of the splits. 0 shards: by the number of examples. A test
    split without a validation split is named validation, as ImageNet's."""
    shards = {}
    for name, examples in splits.items():
        split = "validation" if name == "test" and "validation" not in splits else name
        size = len(examples)
        by_size = min(MOST_SHARDS, size // USUAL_SHARD), min(FEW_SHARDS, size // SMALL_SHARD)
        count = (train_shards if split == "train" else 0) or max(1, *by_size)
        if not 0 < count <= size:
            raise UserError(f"{count} {split} shards do not fit {size} images; give 1 to {size}")
        for number in range(count):
            start, stop = size * number // count, size * (number + 1) // count
            shards[f"{split}-{number:05d}-of-{count:05d}"] = examples[start:stop]
    return shards


def _encode_image(
    root: Path, classes: Sequence[str], first_label: int, image: LabelledImage
) -> bytes:
    data = read_bytes(root / image.path)
    kind, height, width = inspect_image(data)
    return record.encode(
        {
            IMAGE_KEY: data,
            LABEL_KEY: image.label + first_label,
            "image/class/synset": os.fsencode(classes[image.label]),
            "image/class/text": os.fsencode(classes[image.label]),
            "image/filename": os.fsencode(os.path.basename(image.path)),
            "image/format": kind,
            "image/height": height,
            "image/width": width,
        }
    )


def _encode_cifar(row: tuple[Any, Any]) -> bytes:
    pixels, label = row
    return record.encode({"image": pixels.transpose(2, 0, 1).tobytes(), "label": int(label)})
