"""Folders of images, one folder per class: list and check the files, and a source that reads them
unchanged.

`train/<class>/*.jpg` with `val/`, `valid/`, `validation/` or `test/` beside it, or one folder of
classes of which `split` is held out by a hash of each image's path. Only `build_pictures` needs
TensorFlow; `convert` and `check` use the rest.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.data.digests import digest_of, spread
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats.reading import read_batch
from paceline.formats.source_folder import read_bytes, source_folder, visible_entries
from paceline.storage.files import explained, is_folder

if TYPE_CHECKING:
    import tensorflow as tf
    from PIL.ImageFile import ImageFile

    from paceline.data.source import Source, Split

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
"""All that training decodes, see `formats.encoded.decode`."""
ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
TEST_FOLDERS = ("val", "valid", "validation", "test")
PARALLEL_READS = 16
"""Servers of network file systems answer several questions at a time."""


class LabelledImage(NamedTuple):
    """A file by its path relative to the data set's folder, and the number of its class."""

    path: str
    label: int


class ImageFolders(NamedTuple):
    """All images of a data set, sorted by path."""

    classes: tuple[str, ...]
    train: list[LabelledImage]
    test: list[LabelledImage]


def build_pictures(data: Data) -> Source:
    """Return the source of a folder of images."""
    from paceline.data.source import Source

    root = source_folder(data.dir, "it must have train/<class>/*.jpg and val/<class>/*.jpg")
    if data.skip_bad:
        advice = "`paceline data convert` leaves bad images out and lists them"
        raise UserError(f"data.skip-bad is for TFRecords; {advice}")
    folders = find_images(root, data.split)
    train, test = (_split(root, images) for images in (folders.train, folders.test))
    images = [*folders.train, *folders.test]
    return Source(train, test, folders.classes, None, files_digest(root, images))


def find_images(folder: Path, split: float = 0.0) -> ImageFolders:
    """Return the images of a folder with train/ and val/, or of one folder of classes, of which
    the share `split` becomes the test split."""
    if not 0 <= split < 1:
        raise UserError(f"split is {split}; it must be a share of the images, such as 0.1")
    if not is_folder(folder / "train"):
        return _find_and_split(folder, split)
    test = test_folder(folder)
    if test is None:
        advice = f"to hold out a share of its images, give {folder}/train and a split"
        raise UserError(f"{folder} has train/ but no val/, valid/, validation/ or test/; {advice}")
    if split:
        advice = f"do not give a split, or give {folder}/train"
        raise UserError(f"{folder} has train/ and {test}/ already; {advice}")
    classes = class_folders(folder / "train")
    if unknown := sorted(set(class_folders(folder / test)) - set(classes)):
        raise UserError(f"{folder / test} has a class {unknown[0]!r} that train/ does not have")
    train = list_images(folder, "train", classes)
    return ImageFolders(classes, train, list_images(folder, test, classes, may_lack=True))


def _find_and_split(folder: Path, split: float) -> ImageFolders:
    classes = class_folders(folder)
    images = list_images(folder, "", classes)
    if not split:
        advice = "give --split or --data.split, such as 0.1, to hold out a tenth"
        raise UserError(f"{folder} has classes but no train/ and val/; {advice}")
    parts: tuple[list[LabelledImage], list[LabelledImage]] = ([], [])
    for image in images:
        # The path alone decides, so that adding or removing images does not move others.
        digest = hashlib.sha256(image.path.encode(errors="surrogateescape")).digest()
        parts[int.from_bytes(digest[:8], "big") < split * 2**64].append(image)
    if not all(parts):
        found = f"a split of {split} divides {len(images)} images into {len(parts[0])} to train on"
        raise UserError(f"{found} and {len(parts[1])} to test on; give a different split")
    return ImageFolders(classes, *parts)


def test_folder(folder: Path) -> str | None:
    """Return the name of the folder of test images, if there is one."""
    return next((name for name in TEST_FOLDERS if is_folder(folder / name)), None)


def contains_images(folder: Path) -> bool:
    """Return whether a class folder in `folder` has an image, by names alone."""
    place = folder / "train" if is_folder(folder / "train") else folder
    return any(image_names(place / name) for name in subfolders(place))


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    with explained("read", folder):  # of a link, its target is looked at
        return sorted(entry.name for entry in visible_entries(folder) if entry.is_dir())


def image_names(folder: Path) -> list[str]:
    """Return the names of the images in a folder, sorted."""
    with explained("read", folder):
        images = [e for e in visible_entries(folder) if e.name.lower().endswith(ENDINGS)]
        return sorted(entry.name for entry in images if entry.is_file())


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the names of the class folders, sorted. A class's label is its place."""
    names = subfolders(folder)
    if not names:
        raise UserError(f"{folder} has no folders; there must be one folder of images per class")
    if broken := [name for name in names if "\n" in name]:
        raise UserError(f"{folder} has a class {broken[0]!r} with a line break; rename its folder")
    return tuple(names)


def list_images(
    root: Path, part: str, classes: Sequence[str], may_lack: bool = False
) -> list[LabelledImage]:
    """Return the images of all classes in `root`/`part`. Each class must have an image; with
    `may_lack`, one class must."""
    found: list[LabelledImage] = []
    for label, name in enumerate(classes):
        place = root / part / name
        files = image_names(place) if is_folder(place) or not may_lack else []
        if not files and not may_lack:
            raise UserError(f"the class folder {place} has no image ({', '.join(ENDINGS)})")
        found += [LabelledImage(os.path.join(part, name, file), label) for file in files]
    if not found:
        raise UserError(f"{root / part} has no image ({', '.join(ENDINGS)}) in its class folders")
    return found


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
