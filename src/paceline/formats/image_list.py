"""Which images a folder contains, by split and class: folders of classes, or a table.

`train/<class>/*.jpg` with `val/`, `test/` or both beside it, or one folder of classes of which
`split` is held out by a hash of each image's path. Only names are read. No TensorFlow.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UserError
from paceline.formats.image_table import find_tables, read_tables
from paceline.formats.source_folder import name_splits, visible_entries
from paceline.storage.files import explained, is_folder

ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
MOST_FOLDERS = 3
"""Around the data set: photos/photos/train/cat/1.jpg."""


class LabelledImage(NamedTuple):
    """A file by its path relative to the data set's folder, and the number of its class."""

    path: str
    label: int


class ImageList(NamedTuple):
    """The images of a data set by split, sorted by path: train, test, and perhaps validation."""

    root: Path
    classes: tuple[str, ...]
    splits: dict[str, list[LabelledImage]]
    problems: list[str]
    """Why the images cannot be trained on."""
    left_out: Counter[str]
    """The number of files beside the images, by the endings of their names."""
    faults: Sequence[str] = ()
    """Rows of a table that cannot be used."""


def find_images(folder: Path, split: float = 0.0) -> ImageList:
    """Return the images of train/ and val/, or of one folder of classes, of which the share `split`
    becomes the test split."""
    root = inner_folder(folder)
    check_share(split)
    found = _list_classes(root)
    if "test" not in found.splits or found.problems:
        found = _list_table(root, found) or found
    if "test" in found.splits:
        check_share(split, str(found.root))
        return found
    if (found.problems and not split) or not found.splits["train"]:
        return found._replace(splits=found.splits | {"test": []})
    if not split:
        advice = "pass --data.split, such as 0.1, to hold out a tenth"
        raise UserError(f"{found.root} has no test split (test/ or val/); {advice}")
    return _divide(found, split)


def check_share(share: float, divided: str = "") -> None:
    """Raise UserError if a share is not one, or is given for a folder that is `divided` already."""
    if not 0 <= share < 1:
        raise UserError(f"split is {share}; it must be a share of the images, such as 0.1")
    if share and divided:
        advice = f"do not give a split, or give {divided}/train"
        raise UserError(f"{divided} has a test split already; {advice}")


def _divide(found: ImageList, split: float) -> ImageList:
    images = found.splits["train"]
    parts: tuple[list[LabelledImage], list[LabelledImage]] = ([], [])
    for image in images:
        # The path alone decides, so that adding or removing images does not move others.
        digest = hashlib.sha256(image.path.encode(errors="surrogateescape")).digest()
        parts[int.from_bytes(digest[:8], "big") < split * 2**64].append(image)
    if not all(parts):
        given = f"a split of {split} divides {len(images)} images into {len(parts[0])} to train on"
        raise UserError(f"{given} and {len(parts[1])} to test on; choose a different split")
    return found._replace(splits={"train": parts[0], "test": parts[1]})


def inner_folder(folder: Path) -> Path:
    """Return the folder with the classes or splits: `folder`, or the only folder in it, if that has
    no images itself, and so on."""
    for _ in range(MOST_FOLDERS):
        names = subfolders(folder)
        if len(names) != 1 or name_splits(names, folder) or find_tables(folder):
            break
        if image_names(folder / names[0])[0]:
            break
        folder = folder / names[0]
    return folder


def contains_images(folder: Path) -> bool:
    """Return whether a class folder in `folder` (beside a table, any folder) names an image."""
    root = inner_folder(folder)
    place = root / name_splits(subfolders(root), root).get("train", "")
    if find_tables(root, place):
        return any(True for _ in walk_images(root))
    return any(image_names(place / name)[0] for name in subfolders(place))


def walk_images(folder: str | Path) -> Iterator[str]:
    """Yield the images in a folder and in all folders in it, in the order of their names."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield os.path.join(parent, name)


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    with explained("read", folder):  # of a link, its target is looked at
        names = sorted(entry.name for entry in visible_entries(folder) if entry.is_dir())
    return [name for name in names if name != "__MACOSX"]


def image_names(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return the names of the images in a folder, sorted, and the endings of other entries."""
    images, others = list[str](), Counter[str]()
    with explained("read", folder):
        for entry in visible_entries(folder):
            if entry.name.lower().endswith(ENDINGS) and entry.is_file():
                images.append(entry.name)
            else:
                others["folders" if entry.is_dir() else Path(entry.name).suffix.lower()] += 1
    return sorted(images), others


def _list_classes(root: Path) -> ImageList:
    """Return the images of the class folders. A class's label is its place among the names."""
    parts = name_splits(subfolders(root), root)
    if "train" not in parts:
        parts = {"train": ""}
    elif len(parts) == 1:  # only train/
        root, parts = root / parts["train"], {"train": ""}
    classes = tuple(subfolders(root / parts["train"]))
    found = ImageList(root, classes, {}, [], Counter())
    if len(classes) < 2:
        given = f"one class folder, {classes[0]!r}" if classes else "no folders"
        advice = "there must be one folder of images for each class, and two classes or more"
        found.problems.append(f"{root / parts['train']} has {given}; {advice}")
    broken = [name for name in classes if "\n" in name]
    found.problems.extend(f"{root}: class {name!r} has a line break; rename it" for name in broken)
    for split, part in parts.items():
        found.splits[split] = []
        for unknown in sorted(set(subfolders(root / part)) - set(classes)):
            problem = f"{root / part} has a class {unknown!r} that {parts['train']}/ does not have"
            found.problems.append(problem)
        for label, name in enumerate(classes):
            _list_class(found, split, os.path.join(part, name), label)
        if not found.splits[split]:
            kinds = ", ".join(ENDINGS)
            found.problems.append(f"{root / part} has no image ({kinds}) in its class folders")
    return found


def _list_table(root: Path, folders: ImageList) -> ImageList | None:
    """Return the images that a table lists, if there is one. If it cannot be understood, that is an
    error only where the folders are not classes."""
    problems = list[str]()
    try:
        tables = read_tables(root, ENDINGS)
    except UserError:
        if len(folders.classes) < 2:
            raise
        tables = None
    if tables is None:
        return None
    names = {label for _, label in tables.images.values()}
    numbers = all(re.fullmatch("[0-9]{1,9}", name) for name in names)
    classes = sorted(names, key=int) if numbers else sorted(names)
    if len(classes) < 2:
        problems.append(f"the table in {root} has the labels {classes}; there must be two or more")
    labels = {name: label for label, name in enumerate(classes)}
    splits: dict[str, list[LabelledImage]] = {"train": []}
    for path, (split, name) in sorted(tables.images.items()):
        splits.setdefault(split, []).append(LabelledImage(path, labels[name]))
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits.pop("validation")
    return ImageList(root, tuple(classes), splits, problems, Counter(), tables.faults)


def _list_class(found: ImageList, split: str, folder: str, label: int) -> None:
    """Add the images of a class folder. Only in the training split, every class must have one."""
    place = found.root / folder
    files, others = image_names(place) if split == "train" or is_folder(place) else ([], Counter())
    found.left_out.update(others)
    if not files and split == "train":
        found.problems.append(f"the class folder {place} has no image ({', '.join(ENDINGS)})")
    found.splits[split] += [LabelledImage(os.path.join(folder, file), label) for file in files]
