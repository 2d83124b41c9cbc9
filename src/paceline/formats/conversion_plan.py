"""What a conversion reads, and into which shards: CIFAR's own files, folders of images, or ImageNet
with a flat validation folder.

It lists and divides the examples; `convert` writes the shards. No TensorFlow.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.formats.cifar import Layout, check_complete, find_layout, read_splits
from paceline.formats.image_file import inspect_image, read_image
from paceline.formats.image_folder import (
    LabelledImage,
    class_folders,
    find_images,
    image_names,
    list_images,
    subfolders,
    test_folder,
)
from paceline.formats.tfrecord import example
from paceline.formats.tfrecord.keys import IMAGE_KEY, LABEL_KEY
from paceline.storage.files import explained

SHARD_BYTES = 64 << 20
IMAGENET_CLASSES = 1000
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
_SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class ConvertSettings:
    """0 shards: by the size of the data, 1024 and 128 for ImageNet. First label -1: 1 for ImageNet,
    else 0. `names_file` has lines of a class and its name in words."""

    split: float = 0.0
    shards: int = 0
    validation_shards: int = 0
    labels_file: str = ""
    names_file: str = ""
    first_label: int = -1

    def __post_init__(self) -> None:
        if min(self.shards, self.validation_shards) < 0 or self.first_label not in (-1, 0, 1):
            allowed = "must be 0 (chosen for you) or more; first-label must be 0 or 1"
            raise UserError(f"shards and validation-shards {allowed}")

    def shards_of(self, split: str) -> int:
        return self.shards if split == "train" else self.validation_shards


@dataclass(frozen=True)
class ShardJob:
    """A shard to write. `encode` makes a record of one of its examples."""

    name: str
    examples: Sequence[Any]
    encode: Callable[[Any], bytes]


@dataclass(frozen=True)
class Conversion:
    """All shards, what `dataset.json` says of their records, and what identifies the inputs."""

    jobs: tuple[ShardJob, ...]
    classes: tuple[str, ...]
    keys: dict[str, Any]
    identity: dict[str, str]
    is_quick: bool = False
    """Whether this process writes it within seconds."""


def plan_conversion(folder: Path, settings: ConvertSettings) -> Conversion:
    """Find what is in `folder`, and divide it into shards."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    for source in ("cifar10", "cifar100"):
        if found := find_layout(source, folder):
            if settings.split or settings.labels_file:
                advice = "do not give --split or --labels-file"
                raise UserError(f"{folder} has {source}, with its own split and labels; {advice}")
            return _plan_cifar(*found, settings)
    return _plan_images(folder.resolve(), settings)


def _plan_cifar(layout: Layout, folder: Path, settings: ConvertSettings) -> Conversion:
    check_complete(layout, folder, f"fetch {layout.source} again into a new folder")
    jobs = []
    for split, (images, labels) in zip(IMAGENET_SHARDS, read_splits(layout, folder), strict=True):
        examples = list(zip(images, labels, strict=True))
        count = _shard_count(len(examples), len(examples) * CIFAR_RECORD_BYTES)
        jobs += _divide(split, examples, settings.shards_of(split) or count, _encode_cifar)
    identity = {"source": str(folder.resolve()), "shards": f"{len(jobs)} from {jobs[0].name}"}
    return Conversion(tuple(jobs), layout.classes, CIFAR_KEYS, identity, is_quick=True)


def _plan_images(root: Path, settings: ConvertSettings) -> Conversion:
    classes, splits = find_inputs(root, settings.split, settings.labels_file)
    first = int(is_imagenet(classes)) if settings.first_label < 0 else settings.first_label
    texts = _read_class_texts(settings.names_file, classes)
    encode = partial(_encode_image, root, classes, texts, first)
    jobs, digest = [], hashlib.sha256(f"{first} {texts}".encode(errors="surrogateescape"))
    for split, images in splits.items():
        mixed = sorted(images, key=lambda image: hashlib.sha256(os.fsencode(image.path)).digest())
        with explained("read", root):
            sizes = [os.stat(root / image.path).st_size for image in mixed]
        for image, size in zip(mixed, sizes, strict=True):
            digest.update(f"{image.label} {size} ".encode() + os.fsencode(image.path) + b"\n")
        count = _shard_count(len(mixed), sum(sizes))
        if is_imagenet(classes):
            count = IMAGENET_SHARDS[split]
        jobs += _divide(split, mixed, settings.shards_of(split) or count, encode)
    digest.update(" ".join(job.name for job in jobs).encode())
    keys = {"image_key": IMAGE_KEY, "label_key": LABEL_KEY, "first_label": first}
    identity = {"source": str(root), "digest": digest.hexdigest()[:32]}
    return Conversion(tuple(jobs), classes, keys, identity)


def is_imagenet(classes: Sequence[str]) -> bool:
    return len(classes) == IMAGENET_CLASSES and all(map(_SYNSET.fullmatch, classes))


def _shard_count(records: int, size: int) -> int:
    by_size, by_records = -(-size // SHARD_BYTES), min(FEW_SHARDS, records // SMALL_SHARD)
    return max(1, min(MOST_SHARDS, max(by_size, by_records)))


def _divide(
    split: str, examples: Sequence[Any], count: int, encode: Callable[[Any], bytes]
) -> list[ShardJob]:
    if count > len(examples):
        raise UserError(
            f"{count} {split} shards are too many for {len(examples)} images; give fewer"
        )
    bounds = [len(examples) * number // count for number in range(count + 1)]
    return [
        ShardJob(
            f"{split}-{number:05d}-of-{count:05d}",
            examples[bounds[number] : bounds[number + 1]],
            encode,
        )
        for number in range(count)
    ]


def _encode_image(
    root: Path, classes: Sequence[str], texts: Sequence[str], first_label: int, image: LabelledImage
) -> bytes:
    data = read_image(root / image.path)
    facts = inspect_image(data)
    return example.encode(
        {
            IMAGE_KEY: data,
            LABEL_KEY: image.label + first_label,
            "image/class/synset": os.fsencode(classes[image.label]),
            "image/class/text": os.fsencode(texts[image.label]),
            "image/channels": facts.channels,
            "image/colorspace": facts.colorspace,
            "image/filename": os.fsencode(os.path.basename(image.path)),
            "image/format": facts.format,
            "image/height": facts.height,
            "image/width": facts.width,
        }
    )


def _encode_cifar(row: tuple[Any, Any]) -> bytes:
    pixels, label = row
    return example.encode({"image": pixels.transpose(2, 0, 1).tobytes(), "label": int(label)})


def find_inputs(
    folder: Path, split: float, labels_file: str
) -> tuple[tuple[str, ...], dict[str, list[LabelledImage]]]:
    """Return the classes, and the images of the splits `train` and `validation`. `labels_file` has
    the classes of a flat validation folder."""
    test = test_folder(folder)
    if test and not subfolders(folder / test):
        return _find_flat(folder, test, split, labels_file)
    if labels_file:
        found_instead = f"the images of {folder} are in class folders"
        raise UserError(f"--labels-file is for a flat validation folder; {found_instead}")
    folders = find_images(folder, split)
    return folders.classes, {"train": folders.train, "validation": folders.test}


def _find_flat(
    folder: Path, test: str, split: float, labels_file: str
) -> tuple[tuple[str, ...], dict[str, list[LabelledImage]]]:
    names = image_names(folder / test)
    if not names:
        raise UserError(f"{folder / test} is empty: it has neither class folders nor images")
    if not labels_file or split:
        advice = "give --labels-file FILE with their classes, and no --split"
        raise UserError(f"{folder / test} has images without class folders; {advice}")
    classes = class_folders(folder / "train")
    numbers = {name: label for label, name in enumerate(classes)}
    images = []
    for name, found in read_label_file(Path(labels_file).expanduser(), names).items():
        if found not in numbers:
            hint = "; numbers are not taken: their order is not that of the folders"
            unknown = f"{labels_file} gives {name} the class {found!r}, which train/ does not have"
            raise UserError(unknown + (hint if found.isdecimal() else ""))
        images.append(LabelledImage(os.path.join(test, name), numbers[found]))
    train = list_images(folder, "train", classes)
    return classes, {"train": train, "validation": sorted(images)}


def read_label_file(file: Path, names: list[str]) -> dict[str, str]:
    """Return the class of each image. Known forms: one class per line in the order of the sorted
    images; lines of image and class; ImageNet's CSV of ImageId and PredictionString."""
    with explained("read", file):
        text = file.read_text(encoding="utf-8", errors="replace")
    try:
        rows = [row for row in csv.reader(text.split("\n")) if row and row[0].strip()]
    except csv.Error as error:
        raise UserError(f"{file} is not a list of images and classes: {error}") from error
    if rows and rows[0][0].strip() == "ImageId":
        rows = rows[1:]
    words = [" ".join(row).split() for row in rows]
    if words and all(len(row) == 1 for row in words):
        if len(words) != len(names):
            found = f"{file} has {len(words)} lines, but there are {len(names)} images"
            raise UserError(f"{found}; give one class per image")
        return dict(zip(names, (row[0] for row in words), strict=True))
    pairs = {row[0]: row[1] for row in words if len(row) > 1}
    classes = {name: pairs.get(name) or pairs.get(os.path.splitext(name)[0]) for name in names}
    lost = [name for name, found in classes.items() if not found]
    if lost:
        others = f"{len(lost) - 1} others of {len(names)} images"
        raise UserError(f"{file} has no class for {lost[0]} and {others}")
    return {name: str(found) for name, found in classes.items()}


def _read_class_texts(file: str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each class from lines such as `n01440764 tench, Tinca tinca`. A class
    without a line keeps its own name."""
    if not file:
        return tuple(classes)
    with explained("read", Path(file)):
        text = Path(file).expanduser().read_text(errors="replace")
    lines = [line.split(None, 1) for line in text.split("\n")]
    names = {line[0]: line[1].strip() for line in lines if len(line) == 2}
    return tuple(names.get(name, name) for name in classes)
