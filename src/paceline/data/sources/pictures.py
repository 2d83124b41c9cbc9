"""Folders of pictures, one folder per class: what lies where, and a source that reads the files as they are.

`train/<class>/*.jpg` with `val/`, `validation/` or `test/` beside it, or one folder of classes of which `split` is held out by
a hash of each picture's path. It decodes nothing. All but `build_pictures` is without TensorFlow; `convert` and `check` use it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.config.experiment import Data
from paceline.errors import UserError
from paceline.run_folder.folder import explained

if TYPE_CHECKING:
    import tensorflow as tf

    from paceline.data.source import Source, Split

ENDINGS = (".jpg", ".jpeg", ".png")
TEST_FOLDERS = ("val", "validation", "test")


class Picture(NamedTuple):
    """A file by its path relative to the folder of the data set, and the number of its class."""

    path: str
    label: int


class Folders(NamedTuple):
    """All pictures of a data set, sorted by path."""

    classes: tuple[str, ...]
    train: list[Picture]
    test: list[Picture]


def build_pictures(data: Data) -> Source:
    from paceline.data.source import Source

    if not data.dir:
        raise UserError(
            "the source pictures needs its folder: give --data.dir DIR with train/<class>/*.jpg and val/<class>/*.jpg"
        )
    if data.skip_bad:
        raise UserError(
            "data.skip-bad is for TFRecords; `paceline data convert` leaves bad pictures out and names them"
        )
    folders = find_pictures(Path(data.dir).expanduser(), data.split)
    train, test = (
        _split(Path(data.dir).expanduser(), pictures) for pictures in (folders.train, folders.test)
    )
    return Source(train, test, folders.classes, None)


def find_pictures(folder: Path, split: float = 0.0) -> Folders:
    """The pictures of a folder with train/ and val/, or of one folder of classes, parted by `split`."""
    _check_folder(folder)
    if not 0 <= split < 1:
        raise UserError(f"split is {split}; it must be a share of the pictures, such as 0.1")
    if not (folder / "train").is_dir():
        return _find_parted(folder, split)
    test = test_folder(folder)
    if test is None:
        raise UserError(
            f"{folder} has train/ but no val/, validation/ or test/ beside it; for a split of its own give {folder}/train"
        )
    if split:
        raise UserError(
            f"{folder} has train/ and {test}/ already; leave split out, or give {folder}/train"
        )
    classes = class_folders(folder / "train")
    strangers = sorted(set(class_folders(folder / test)) - set(classes))
    if strangers:
        raise UserError(
            f"{folder / test} has a class {strangers[0]!r} that {folder / 'train'} has not"
        )
    train = list_pictures(folder, "train", classes)
    return Folders(classes, train, list_pictures(folder, test, classes, may_lack=True))


def test_folder(folder: Path) -> str | None:
    return next((name for name in TEST_FOLDERS if (folder / name).is_dir()), None)


def looks_like_pictures(folder: Path) -> bool:
    """Whether a class folder in it has a picture, by names alone."""
    place = folder / "train" if (folder / "train").is_dir() else folder
    folders = [
        entry.path
        for entry in os.scandir(place)
        if entry.is_dir() and not entry.name.startswith(".")
    ]
    return any(_is_picture(entry.name) for each in folders for entry in os.scandir(each))


def class_folders(folder: Path) -> tuple[str, ...]:
    """Names of the class folders, sorted: the label is the place."""
    with explained("read", folder), os.scandir(folder) as entries:
        names = sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )
    if not names:
        raise UserError(
            f"{folder} has no folders; there must be one folder for each class, with its pictures"
        )
    return tuple(names)


def list_pictures(
    root: Path, part: str, classes: Sequence[str], may_lack: bool = False
) -> list[Picture]:
    """Pictures of all classes in `root`/`part`; each class must have one, or with `may_lack` one of them."""
    found: list[Picture] = []
    for label, name in enumerate(classes):
        place = root / part / name
        files = list_files(place) if place.is_dir() or not may_lack else []
        if not files and not may_lack:
            raise UserError(f"the class folder {place} has no picture ({', '.join(ENDINGS)})")
        found += [Picture(os.path.join(part, name, file), label) for file in files]
    if not found:
        raise UserError(f"{root / part} has no picture ({', '.join(ENDINGS)}) in its class folders")
    return found


def list_files(folder: Path) -> list[str]:
    """Names of the pictures in a folder, sorted."""
    with explained("read", folder), os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if _is_picture(entry.name) and entry.is_file()
        )


def held_out(path: str, split: float) -> bool:
    """Whether a picture is of the test split: decided by its path alone, so that others come and go without moving it."""
    number = int.from_bytes(
        hashlib.sha256(path.encode(errors="surrogateescape")).digest()[:8], "big"
    )
    return number < split * 2**64


def _find_parted(folder: Path, split: float) -> Folders:
    classes = class_folders(folder)
    pictures = list_pictures(folder, "", classes)
    if not split:
        raise UserError(
            f"{folder} has classes but no train/ and val/; give --split or --data.split, such as 0.1, to hold out a tenth"
        )
    test = [picture for picture in pictures if held_out(picture.path, split)]
    train = [picture for picture in pictures if not held_out(picture.path, split)]
    for name, part in (("train", train), ("test", test)):
        if not part:
            raise UserError(
                f"of {len(pictures)} pictures a split of {split} leaves none to {name}; give another"
            )
    return Folders(classes, train, test)


def _is_picture(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not name.startswith(".")


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; give one with train/<class>/*.jpg and val/<class>/*.jpg"
        )


def _split(root: Path, pictures: Sequence[Picture]) -> Split:
    """Folder and name are kept apart: 32 bytes for most names, whatever the folder is called."""
    import tensorflow as tf

    from paceline.data.source import Split

    folders = sorted({os.path.dirname(picture.path) for picture in pictures})
    numbers = {folder: number for number, folder in enumerate(folders)}
    paths = tf.constant([os.fsencode(root / folder) + b"/" for folder in folders])
    names = tf.constant([os.fsencode(os.path.basename(picture.path)) for picture in pictures])
    places = tf.constant([numbers[os.path.dirname(picture.path)] for picture in pictures], tf.int32)
    labels = tf.constant([picture.label for picture in pictures], tf.int32)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        files = tf.strings.join(
            [tf.gather(paths, tf.gather(places, indices)), tf.gather(names, indices)]
        )
        content = tf.map_fn(
            tf.io.read_file,
            files,
            fn_output_signature=tf.TensorSpec([], tf.string),
            parallel_iterations=16,
        )
        return content, tf.gather(labels, indices)

    return Split(len(pictures), read)
