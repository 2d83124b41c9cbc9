"""What a data set contains: its kind, and its counts per split and class, for `paceline data info`.

`detect` reads file names only and needs no TensorFlow; `describe_source` reads every label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    path = Path(folder).expanduser()
    if not is_folder(path):
        raise UserError(f"there is no folder {path}")
    found = [name for name in ("cifar10", "cifar100") if find_layout(name, path)]
    found += ["arrays"] if is_file(path / "train_images.npy") else []
    found += ["tfrecord"] if find_shards(str(path)) else []
    found += ["pictures"] if not found and contains_images(path) else []
    if not found:
        raise UserError(
            f"{path} has no data set of a known kind: cifar10, cifar100 (binary or Python files), "
            "arrays (.npy), tfrecord (train-00000-of-00008 ...), pictures (train/<class>/*.jpg)"
        )
    if len(found) > 1:
        several = ", ".join(found)
        raise UserError(f"{path} has several data sets: {several}; give the folder of one of them")
    return found[0]


@dataclass(frozen=True)
class Description:
    """What a source contains: the count of each class, by split."""

    image_shape: tuple[int, int, int] | None
    classes: tuple[str, ...]
    per_class: dict[str, list[int]]

    def lines(self) -> list[str]:
        """Return the description as text: one line per split, then one per class."""
        shape = " x ".join(map(str, self.image_shape or ())) or "encoded, of any size"
        sizes = {split: sum(counts) for split, counts in self.per_class.items()}
        return [
            f"images  {shape}",
            f"classes {len(self.classes)}",
            *(f"{split:7} {size:,} examples" for split, size in sizes.items()),
            *class_table(self.classes, self.per_class),
        ]


def describe_source(source: Source) -> Description:
    """Read every label of a source."""
    splits = {"train": source.train, "test": source.test}
    counts = {name: _count(split, len(source.classes)) for name, split in splits.items()}
    return Description(source.image_shape, tuple(source.classes), counts)


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
    per_class: list[int] = counts.tolist()
    return per_class
