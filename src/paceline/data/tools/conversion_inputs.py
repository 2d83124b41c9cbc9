"""What a conversion takes: CIFAR as its authors ship it, folders of pictures, ImageNet with its flat validation folder.

It finds and lists; `convert` reads and writes. No TensorFlow.
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass
from pathlib import Path

from paceline.data.sources.cifar import Layout, find_layout
from paceline.data.sources.pictures import (
    Picture,
    class_folders,
    find_pictures,
    list_files,
    list_pictures,
    test_folder,
)
from paceline.errors import UserError
from paceline.run_folder.folder import explained

IMAGENET_CLASSES = 1000
_SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Originals:
    """Pictures by split, `train` and `validation`; of CIFAR its layout and place instead."""

    classes: tuple[str, ...]
    splits: dict[str, list[Picture]]
    cifar: tuple[Layout, Path] | None = None

    @property
    def is_imagenet(self) -> bool:
        return len(self.classes) == IMAGENET_CLASSES and all(
            _SYNSET.fullmatch(name) for name in self.classes
        )


def find_originals(folder: Path, split: float, labels_file: str) -> Originals:
    """What lies in `folder`; `labels_file` has the classes of a flat validation folder."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    for source in ("cifar10", "cifar100"):
        found = find_layout(source, folder)
        if found:
            if split or labels_file:
                raise UserError(
                    f"{folder} holds {source}, which has its own split and labels; leave --split and --labels-file out"
                )
            return Originals((), {}, found)
    test = test_folder(folder)
    if test and _is_flat(folder / test):
        return _find_flat(folder, test, split, labels_file)
    if labels_file:
        raise UserError(
            f"--labels-file is for a flat validation folder; {folder} has none: its pictures lie in class folders"
        )
    folders = find_pictures(folder, split)
    return Originals(folders.classes, {"train": folders.train, "validation": folders.test})


def read_label_file(file: Path, names: list[str]) -> dict[str, str]:
    """The class of each picture. Known forms: one class per line in the order of the sorted pictures; lines of picture and
    class; ImageNet's CSV of ImageId and PredictionString."""
    with explained("read", file):
        text = file.read_text(encoding="utf-8", errors="replace")
    rows = [row for row in csv.reader(text.splitlines()) if row and row[0].strip()]
    if rows and rows[0][0].strip() == "ImageId":
        rows = rows[1:]
    words = [" ".join(row).split() for row in rows]
    if words and all(len(row) == 1 for row in words):
        if len(words) != len(names):
            raise UserError(
                f"{file} has {len(words)} lines, but there are {len(names)} pictures; one class per picture is needed"
            )
        return dict(zip(names, (row[0] for row in words), strict=True))
    pairs = {row[0]: row[1] for row in words if len(row) > 1}
    by_stem = {name: pairs.get(name) or pairs.get(os.path.splitext(name)[0]) for name in names}
    lost = [name for name, found in by_stem.items() if not found]
    if lost:
        raise UserError(
            f"{file} has no class for {lost[0]} and {len(lost) - 1} others of {len(names)} pictures"
        )
    return {name: str(found) for name, found in by_stem.items()}


def _is_flat(folder: Path) -> bool:
    with explained("read", folder), os.scandir(folder) as entries:
        return not any(entry.is_dir() and not entry.name.startswith(".") for entry in entries)


def _find_flat(folder: Path, test: str, split: float, labels_file: str) -> Originals:
    names = list_files(folder / test)
    if not names:
        raise UserError(f"{folder / test} is empty: it has neither class folders nor pictures")
    if not labels_file or split:
        raise UserError(
            f"{folder / test} has pictures without class folders; give --labels-file FILE with their classes, and no --split"
        )
    classes = class_folders(folder / "train")
    numbers = {name: label for label, name in enumerate(classes)}
    pictures = []
    for name, found in read_label_file(Path(labels_file).expanduser(), names).items():
        if found not in numbers:
            hint = (
                "; numbers are not taken, their order is not that of the folders"
                if found.isdecimal()
                else ""
            )
            raise UserError(
                f"{labels_file} gives {name} the class {found!r}, which {folder / 'train'} has not{hint}"
            )
        pictures.append(Picture(os.path.join(test, name), numbers[found]))
    return Originals(
        classes, {"train": list_pictures(folder, "train", classes), "validation": sorted(pictures)}
    )
