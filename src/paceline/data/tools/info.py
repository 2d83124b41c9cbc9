"""What is in a data set: which kind a folder holds, and counts per split and class, for `paceline data info`.

`detect` looks at file names only and needs no TensorFlow; `describe_source` reads every label.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.data.sources.cifar import find_layout
from paceline.data.sources.pictures import looks_like_pictures
from paceline.data.sources.shards import find_shards
from paceline.errors import UserError

if TYPE_CHECKING:
    from paceline.data.source import Source, Split

LABELS_AT_ONCE = 1024


def detect(folder: str | Path) -> str:
    """The name of the source that reads `folder`."""
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise UserError(f"there is no folder {place}")
    found = [name for name in ("cifar10", "cifar100") if find_layout(name, place)]
    found += ["arrays"] if (place / "train_images.npy").is_file() else []
    found += ["tfrecord"] if find_shards(str(place)) else []
    found += ["pictures"] if not found and looks_like_pictures(place) else []
    if not found:
        raise UserError(
            f"{place} holds no data set that Paceline knows: cifar10, cifar100 (binary or Python files), arrays (.npy), "
            "tfrecord (train-00000-of-00008 ...), pictures (train/<class>/*.jpg)"
        )
    if len(found) > 1:
        raise UserError(
            f"{place} holds several data sets: {', '.join(found)}; give the folder of one of them"
        )
    return found[0]


def describe_source(source: Source) -> dict[str, Any]:
    """Image shape, class names, and for each split its size and its count of each class: JSON-able."""
    splits = {"train": source.train, "test": source.test}
    return {
        "image_shape": None if source.image_shape is None else list(source.image_shape),
        "classes": list(source.classes),
        "splits": {
            name: {"size": s.size, "per_class": _count(s, len(source.classes))}
            for name, s in splits.items()
        },
    }


def description_lines(description: dict[str, Any]) -> list[str]:
    """The description for people to read: one line per split, then one per class."""
    shape, splits, classes = (
        description["image_shape"],
        description["splits"],
        description["classes"],
    )
    lines = [
        f"images  {' x '.join(map(str, shape)) if shape else 'encoded, of any size'}",
        f"classes {len(classes)}",
    ]
    lines += [f"{name:7} {split['size']:,} examples" for name, split in splits.items()]
    width = max(len(name) for name in ("class", *classes))
    lines.append(f"{'class':{width}}" + "".join(f"{name:>10}" for name in splits))
    for label, name in enumerate(classes):
        lines.append(
            f"{name:{width}}"
            + "".join(f"{split['per_class'][label]:>10,}" for split in splits.values())
        )
    return lines


def _count(split: Split, num_classes: int) -> list[int]:
    import numpy as np
    import tensorflow as tf

    counts = np.zeros(num_classes, np.int64)
    for start in range(0, split.size, LABELS_AT_ONCE):
        _, labels = split.read(
            tf.range(start, min(start + LABELS_AT_ONCE, split.size), dtype=tf.int64)
        )
        outside = [int(label) for label in labels.numpy() if not 0 <= label < num_classes]
        if outside:
            raise UserError(
                f"there is a label {outside[0]}, but {num_classes} classes: labels are 0 to {num_classes - 1}"
            )
        counts += np.bincount(labels.numpy(), minlength=num_classes)
    return counts.tolist()
