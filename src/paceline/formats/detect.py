"""What a data set contains: its kind, and its counts per split and class, for `paceline data info`.

`detect` reads file names only and needs no TensorFlow; `describe_source` reads every label.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError
from paceline.formats.cifar import find_layout
from paceline.formats.image_folder import contains_images
from paceline.formats.tfrecord.shards import find_shards
from paceline.storage.files import is_file, is_folder

if TYPE_CHECKING:
    from paceline.data.source import Source, Split

LABELS_AT_ONCE = 1024


def detect(folder: str | Path) -> str:
    """Return the name of the source that reads `folder`."""
    place = Path(folder).expanduser()
    if not is_folder(place):
        raise UserError(f"there is no folder {place}")
    found = [name for name in ("cifar10", "cifar100") if find_layout(name, place)]
    found += ["arrays"] if is_file(place / "train_images.npy") else []
    found += ["tfrecord"] if find_shards(str(place)) else []
    found += ["pictures"] if not found and contains_images(place) else []
    if not found:
        raise UserError(
            f"{place} has no data set of a known kind: cifar10, cifar100 (binary or Python files), "
            "arrays (.npy), tfrecord (train-00000-of-00008 ...), pictures (train/<class>/*.jpg)"
        )
    if len(found) > 1:
        several = ", ".join(found)
        raise UserError(f"{place} has several data sets: {several}; give the folder of one of them")
    return found[0]


def describe_source(source: Source) -> dict[str, Any]:
    """Return image shape, class names, and each split's size and count per class, for JSON."""
    splits = {"train": source.train, "test": source.test}
    return {
        "image_shape": None if source.image_shape is None else list(source.image_shape),
        "classes": list(source.classes),
        "splits": {
            name: {"size": split.size, "per_class": _count(split, len(source.classes))}
            for name, split in splits.items()
        },
    }


def description_lines(description: dict[str, Any]) -> list[str]:
    """Return the description as text: one line per split, then one per class."""
    shape, splits = description["image_shape"], description["splits"]
    counts = {name: split["per_class"] for name, split in splits.items()}
    return [
        f"images  {' x '.join(map(str, shape)) if shape else 'encoded, of any size'}",
        f"classes {len(description['classes'])}",
        *(f"{name:7} {split['size']:,} examples" for name, split in splits.items()),
        *class_table(description["classes"], counts),
    ]


def class_table(classes: Sequence[str], per_class: dict[str, list[int]]) -> list[str]:
    """Return a table as text: a header and one row per class, with the count in each split."""
    width = max(len(name) for name in ("class", *classes))
    rows = [f"{'class':{width}}" + "".join(f"{split:>12}" for split in per_class)]
    for label, name in enumerate(classes):
        counts = "".join(f"{counts[label]:>12,}" for counts in per_class.values())
        rows.append(f"{name:{width}}{counts}")
    return rows


def _count(split: Split, num_classes: int) -> list[int]:
    import numpy as np
    import tensorflow as tf

    counts = np.zeros(num_classes, np.int64)
    for start in range(0, split.size, LABELS_AT_ONCE):
        stop = min(start + LABELS_AT_ONCE, split.size)
        labels = split.read(tf.range(start, stop, dtype=tf.int64))[1].numpy()
        outside = labels[(labels < 0) | (labels >= num_classes)]
        if len(outside):
            allowed = f"labels of {num_classes} classes are 0 to {num_classes - 1}"
            raise UserError(f"there is a label {outside[0]}; {allowed}")
        counts += np.bincount(labels, minlength=num_classes)
    return counts.tolist()
