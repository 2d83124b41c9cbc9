"""The inputs of a conversion: CIFAR's own files, folders of images, ImageNet with flat validation.

It finds and lists; `convert` reads and writes. No TensorFlow.
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError
from paceline.formats.cifar import Layout, find_layout
from paceline.formats.image_folder import (
    LabelledImage,
    class_folders,
    find_images,
    image_names,
    list_images,
    subfolders,
    test_folder,
)
from paceline.storage.files import explained

IMAGENET_CLASSES = 1000
_SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class ConversionInputs:
    """Images by split, `train` and `validation`; for CIFAR its layout and folder instead."""

    classes: tuple[str, ...]
    splits: dict[str, list[LabelledImage]]
    cifar: tuple[Layout, Path] | None = None

    @property
    def is_imagenet(self) -> bool:
        return len(self.classes) == IMAGENET_CLASSES and all(map(_SYNSET.fullmatch, self.classes))


def find_inputs(folder: Path, split: float, labels_file: str) -> ConversionInputs:
    """Return what is in `folder`; `labels_file` has the classes of a flat validation folder."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    for source in ("cifar10", "cifar100"):
        if found := find_layout(source, folder):
            if split or labels_file:
                advice = "do not give --split or --labels-file"
                raise UserError(f"{folder} has {source}, with its own split and labels; {advice}")
            return ConversionInputs((), {}, found)
    test = test_folder(folder)
    if test and not subfolders(folder / test):
        return _find_flat(folder, test, split, labels_file)
    if labels_file:
        found_instead = f"the images of {folder} are in class folders"
        raise UserError(f"--labels-file is for a flat validation folder; {found_instead}")
    folders = find_images(folder, split)
    return ConversionInputs(folders.classes, {"train": folders.train, "validation": folders.test})


def _find_flat(folder: Path, test: str, split: float, labels_file: str) -> ConversionInputs:
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
    return ConversionInputs(classes, {"train": train, "validation": sorted(images)})


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
