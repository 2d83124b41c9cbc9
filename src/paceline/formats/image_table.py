"""Tables of images: .csv and .tsv files with the path and the label of each image, as competitions
and image-folder data sets with a `metadata.csv` have them.

The column of paths is the one whose values are images in the folder, with or without their endings.
The column of labels has a usual name, or is the only other one. No TensorFlow.
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.errors import UserError
from paceline.formats.source_folder import split_of, visible_entries
from paceline.storage.files import explained

LABEL_NAMES = ("label", "labels", "class", "class_name", "target", "category")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
ROWS_TRIED = 100
"""By which the column of paths is found."""
Line = Sequence[str]


class Tables(NamedTuple):
    """The split and the class of each image that tables list, and rows that cannot be used."""

    images: dict[str, tuple[str, str]]
    faults: list[str]


def read_tables(root: Path, endings: tuple[str, ...]) -> Tables | None:
    """Return the images that tables in `root`, or in the folders of its splits, list; None if there
    is no table of images."""
    found, read = Tables({}, []), dict[str, Path]()
    folders = [Path(entry.path) for entry in visible_entries(root) if entry.is_dir()]
    for file in find_tables(root, *(folder for folder in folders if split_of(folder.name))):
        lines, images = _read_lines(file), _Images(root, file.parent, endings)
        column = _path_column(lines, images)
        if column is None:
            continue
        split = split_of(file.stem) or split_of(file.parent.name * (file.parent != root)) or "train"
        if split in read:
            raise UserError(f"{read[split]} and {file} both list images; keep one of them")
        try:
            _add_rows(found, file, split, lines, column, images)
        except UserError:
            if split == "train":
                raise
            continue  # in a competition, the test images have no labels
        read[split] = file
    return found if read else None


def find_tables(*folders: Path) -> list[Path]:
    """Return the tables in some folders, except examples of what a competition is sent."""
    names = [Path(entry.path) for folder in folders for entry in visible_entries(folder)]
    tables = [path for path in names if path.suffix.lower() in (".csv", ".tsv")]
    return sorted(path for path in tables if "submission" not in path.name.lower())


def _read_lines(file: Path) -> list[list[str]]:
    with explained("read", file), file.open(encoding="utf-8-sig", errors="surrogateescape") as text:
        first = text.readline()
        text.seek(0)
        delimiter = next((mark for mark in "\t;" if mark in first and "," not in first), ",")
        try:
            return [line for line in csv.reader(text, delimiter=delimiter) if line]
        except csv.Error as error:
            raise UserError(f"{file} is not a table: {error}") from None


class _Images:
    """The images beside a table: found by path, by name, or by name without its ending."""

    def __init__(self, root: Path, folder: Path, endings: tuple[str, ...]) -> None:
        self._paths: dict[str, str] = {}
        for parent, _, names in os.walk(folder):
            for name in names:
                if name.lower().endswith(endings) and not name.startswith("."):
                    full = os.path.join(parent, name)
                    path = os.path.relpath(full, root)
                    for key in (name, os.path.splitext(name)[0]):  # unless two files have it
                        self._paths[key] = "" if self._paths.get(key, path) != path else path
                    self._paths[os.path.relpath(full, folder)] = path

    def find(self, given: str) -> str:
        """Return the path of an image relative to the data set; empty if there is none."""
        given = os.path.normpath(given.strip().replace("\\", "/"))
        return self._paths.get(given) or self._paths.get(os.path.basename(given), "")


def _path_column(lines: Sequence[Line], images: _Images) -> int | None:
    """Return the column with the most images in the first rows."""
    tried = lines[:ROWS_TRIED]
    counts = [
        len({images.find(line[column]) for line in tried if len(line) > column} - {""})
        for column in range(max(map(len, tried), default=0))
    ]
    return counts.index(max(counts)) if any(counts) else None


def _add_rows(
    found: Tables, file: Path, split: str, lines: Sequence[Line], column: int, images: _Images
) -> None:
    has_header = not images.find(lines[0][column])
    names = [name.strip().lower() * has_header for name in lines[0]]
    splits = next((names.index(name) for name in SPLIT_COLUMNS if name in names), -1)
    labels = _label_column(file, names, {column, splits})
    for number, line in enumerate(lines[has_header:], 1 + has_header):
        whole = len(line) == len(names)
        path, label = (images.find(line[column]), line[labels].strip()) if whole else ("", "")
        own = split_of(line[splits]) if whole and splits >= 0 else split
        if path and own and label and path not in found.images:
            found.images[path] = own, label
        else:
            fault = "it has no label or an unknown split, or is listed twice"
            fault = fault if path else f"there is no image of this name in {file.parent}"
            found.faults.append(f"{file}, row {number} ({','.join(line)[:80]}): {fault}")


def _label_column(file: Path, names: Line, others: set[int]) -> int:
    rest = [column for column in range(len(names)) if column not in others]
    usual = [column for column in rest if names[column] in LABEL_NAMES]
    if len(usual) == 1 or len(rest) == 1:
        return (usual or rest)[0]
    columns = ", ".join(names[k] or f"column {k + 1}" for k in rest) or "no other column"
    raise UserError(f"{file} has {columns} beside the images; name the one with the class 'label'")
