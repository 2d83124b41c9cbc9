"""Which kind of data set a folder contains, by the names of its files alone."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import UserError
from paceline.formats.cifar import find_layout
from paceline.formats.image_list import contains_images
from paceline.formats.source_folder import visible_entries
from paceline.formats.tfrecord.shards import find_shards
from paceline.storage.files import is_file, is_folder

PACKED = {
    ".zip": "unpack it: python -m zipfile -e FILE DIR",
    ".npz": "in Python: d = numpy.load(FILE); "
    "paceline.train(RECIPE, data=(d['x_train'], d['y_train']))",
    "-ubyte": "in Python: paceline.train(RECIPE, data=(images, labels)) with images = "
    "numpy.fromfile(FILE, 'u1', offset=16).reshape(-1, 28, 28), and labels with offset=8",
}
"""Endings of files that are not read, and what can be done instead."""


def detect(folder: str | Path, expected: str = "auto") -> str:
    """Return the name of the source that reads `folder`. If nothing of a known kind is there, it is
    the `expected` one, which reports what it needs."""
    path = Path(folder).expanduser()
    if not str(folder) or not is_folder(path):
        _refuse_packed(path, [path.name])
        if expected != "auto":
            return expected
        given = f"there is no folder {path}" if str(folder) else "the data has no folder"
        raise UserError(f"{given}; give the folder of the data, in training with --data.dir DIR")
    found = [name for name in ("cifar10", "cifar100") if find_layout(name, path)]
    found += ["arrays"] if is_file(path / "train_images.npy") else []
    found += ["tfrecord"] if find_shards(str(path)) else []
    if (not found or expected == "pictures") and contains_images(path):
        found.append("pictures")
    if expected in found or (not found and expected != "auto"):
        return expected
    if not found:
        _refuse_packed(path, sorted(entry.name for entry in visible_entries(path)))
        raise UserError(
            f"{path} has no data set of a known kind: cifar10, cifar100 (binary or Python files), "
            "arrays (.npy), tfrecord (train-00000-of-00008 ...), pictures (train/<class>/*.jpg)"
        )
    if len(found) > 1:
        several = ", ".join(found)
        raise UserError(f"{path} has several data sets: {several}; give the folder of one of them")
    return found[0]


def _refuse_packed(folder: Path, names: list[str]) -> None:
    for name in names:
        for ending, advice in PACKED.items():
            if name.endswith(ending):
                raise UserError(f"{folder} has {name}, which cannot be read in place; {advice}")
