"""Folders of images, one folder per class: list and check the files, and a source that reads them
unchanged.

`train/<class>/*.jpg` with `val/`, `test/` or both beside it, or one folder of classes of which
`split` is held out by a hash of each image's path. Only `build_pictures` needs TensorFlow;
`convert` and `check` use the rest.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.data.digests import digest_of, spread
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats.reading import read_batch
from paceline.formats.source_folder import name_splits, read_bytes, source_folder, visible_entries
from paceline.storage.files import explained, is_folder

if TYPE_CHECKING:
    import tensorflow as tf
    from PIL.ImageFile import ImageFile

    from paceline.data.source import Source, Split

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
"""All that training decodes, see `formats.encoded.decode`."""
ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
MOST_FOLDERS = 3
"""Around the data set: photos/photos/train/cat/1.jpg."""
PARALLEL_READS = 16
"""Servers of network file systems answer several questions at a time."""


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


def build_pictures(data: Data) -> Source:
    """Return the source of a folder of images."""
    from paceline.data.source import Source

    root = source_folder(data.dir, "it must have train/<class>/*.jpg and val/<class>/*.jpg")
    if data.skip_bad:
        advice = "`paceline data convert` leaves bad images out and lists them"
        raise UserError(f"data.skip-bad is for TFRecords; {advice}")
    found = find_images(root, data.split)
    if found.problems:
        more = f" (and {len(found.problems) - 1:,} more problems)" if found.problems[1:] else ""
        raise UserError(found.problems[0] + more)
    images = [image for images in found.splits.values() for image in images]
    splits = {name: _split(found.root, images) for name, images in found.splits.items()}
    digest = files_digest(found.root, images)
    validation = splits.get("validation")
    return Source(splits["train"], splits["test"], found.classes, None, digest, validation)


def find_images(folder: Path, split: float = 0.0) -> ImageList:
    """Return the images of train/ and val/, or of one folder of classes, of which the share `split`
    becomes the test split."""
    if not 0 <= split < 1:
        raise UserError(f"split is {split}; it must be a share of the images, such as 0.1")
    found = _list_classes(inner_folder(folder))
    if "test" in found.splits:
        if split:
            advice = f"do not give a split, or give {found.root}/train"
            raise UserError(f"{found.root} has a test split already; {advice}")
        return found
    if not split:
        advice = "give --data.split, such as 0.1, to hold out a tenth"
        raise UserError(f"{found.root} has no test split (test/ or val/); {advice}")
    return _divide(found, split)


def _divide(found: ImageList, split: float) -> ImageList:
    images = found.splits["train"]
    parts: tuple[list[LabelledImage], list[LabelledImage]] = ([], [])
    for image in images:
        # The path alone decides, so that adding or removing images does not move others.
        digest = hashlib.sha256(image.path.encode(errors="surrogateescape")).digest()
        parts[int.from_bytes(digest[:8], "big") < split * 2**64].append(image)
    if not all(parts):
        given = f"a split of {split} divides {len(images)} images into {len(parts[0])} to train on"
        raise UserError(f"{given} and {len(parts[1])} to test on; give a different split")
    return found._replace(splits={"train": parts[0], "test": parts[1]})


def inner_folder(folder: Path) -> Path:
    """Return the folder with the classes or splits: `folder`, or the only folder in it, if that has
    no images itself, and so on."""
    for _ in range(MOST_FOLDERS):
        names = subfolders(folder)
        if len(names) != 1 or name_splits(names, folder) or image_names(folder / names[0])[0]:
            break
        folder = folder / names[0]
    return folder


def contains_images(folder: Path) -> bool:
    """Return whether a class folder in `folder` has an image, by names alone."""
    root = inner_folder(folder)
    place = root / name_splits(subfolders(root), root).get("train", "")
    return any(image_names(place / name)[0] for name in subfolders(place))


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
    if broken := [name for name in classes if "\n" in name]:
        problem = f"{root} has a class {broken[0]!r} with a line break; rename its folder"
        found.problems.append(problem)
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


def _list_class(found: ImageList, split: str, folder: str, label: int) -> None:
    """Add the images of a class folder. Only in the training split, every class must have one."""
    place = found.root / folder
    files, others = image_names(place) if split == "train" or is_folder(place) else ([], Counter())
    found.left_out.update(others)
    if not files and split == "train":
        found.problems.append(f"the class folder {place} has no image ({', '.join(ENDINGS)})")
    found.splits[split] += [LabelledImage(os.path.join(folder, file), label) for file in files]


def files_digest(root: Path, files: Sequence[tuple[str, int]]) -> str:
    """Return the digest of paths, labels and sizes, and of the content of some files."""

    def sizes_of(part: Sequence[tuple[str, int]]) -> list[int]:
        with explained("read", root):
            return [os.stat(os.path.join(root, path)).st_size for path, _ in part]

    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        parts = [files[number::PARALLEL_READS] for number in range(PARALLEL_READS)]
        sizes = list(pool.map(sizes_of, parts))
    names = [f"{label} {path}".encode(errors="surrogateescape") for path, label in files]
    contents = [read_bytes(root / files[index][0]) for index in spread(len(files))]
    return digest_of([str(sizes).encode(), *names, *contents])


def _split(root: Path, images: Sequence[LabelledImage]) -> Split:
    """Build a split. Folder and name are stored apart: most names then need 32 bytes only."""
    import tensorflow as tf

    from paceline.data.source import Split

    folders = sorted({os.path.dirname(image.path) for image in images})
    numbers = {folder: number for number, folder in enumerate(folders)}
    paths = tf.constant([os.fsencode(root / folder) + b"/" for folder in folders])
    names = tf.constant([os.fsencode(os.path.basename(image.path)) for image in images])
    places = tf.constant([numbers[os.path.dirname(image.path)] for image in images], tf.int32)
    labels = tf.constant([image.label for image in images], tf.int32)

    def read(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        folder, name = tf.gather(paths, tf.gather(places, indices)), tf.gather(names, indices)
        files = tf.strings.join([folder, name])
        contents = tf.data.Dataset.from_tensor_slices(files)
        contents = contents.map(
            tf.io.read_file, num_parallel_calls=PARALLEL_READS, deterministic=True
        )
        return read_batch(contents, files), tf.gather(labels, indices)

    return Split(len(images), read, lambda indices: tf.gather(labels, indices))


def inspect_image(data: bytes) -> tuple[str, int, int]:
    """Return format (of the bytes, not the name), height and width of an image. Raise ValueError
    with the reason if it cannot be decoded.

    A JPEG is decoded at an eighth of its size and without its colors. That still reads every coded
    byte, so it finds an image that is cut, in a fraction of the time of decoding it.
    """
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise ValueError("the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on EXIF and size are not faults
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                kind, (width, height) = image.format, image.size
                kind = kind if kind in FORMATS else "JPEG"  # MPO, several JPEGs in one file
                if fault := _untrainable(kind, data, image):
                    raise ValueError(fault)
                image.draft("L", (1, 1))  # for JPEG only
                image.load()
    except UnidentifiedImageError:
        raise ValueError("the file is not a JPEG, PNG, GIF, BMP or WebP image") from None
    except Exception as error:  # a damaged image can raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the image cannot be decoded ({reason})") from None
    return kind, height, width


def _untrainable(kind: str, data: bytes, image: ImageFile) -> str:
    """Return why TensorFlow could not decode an image that Pillow reads; nothing if it could."""
    if kind == "WEBP" and data[12:16] == b"VP8X" and data[20] & 2:
        return "an animated WebP cannot be trained on; save one frame of it"
    if kind == "GIF" and image.tile and image.tile[0][1] != (0, 0, *image.size):
        return "the first frame of this GIF does not fill the image; save it as PNG"
    if kind == "BMP":
        header, bits, compression = struct.unpack("<14xI10xHI", data[:34])
        usual = compression == 0 or data[54:66] == struct.pack("<III", 0xFF0000, 0xFF00, 0xFF)
        if header < 40 or bits not in (8, 24, 32) or not usual:
            return "a BMP must have 8, 24 or 32 bits and no compression to be trained on"
    return ""
