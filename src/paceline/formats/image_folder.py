"""The images of a folder: a source that reads their files unchanged, and the check of an image.

Only `build_pictures` needs TensorFlow; `convert` and `check` use the rest.
"""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.data.digests import digest_of, spread
from paceline.errors import UserError
from paceline.experiment.experiment import Data
from paceline.formats.image_list import ImageList, LabelledImage, find_images
from paceline.formats.reading import PARALLEL_READS, read_batch
from paceline.formats.source_folder import read_bytes, source_folder
from paceline.formats.tfrecord.index import read_known, save_known
from paceline.storage.files import explained

if TYPE_CHECKING:
    import tensorflow as tf
    from PIL.ImageFile import ImageFile

    from paceline.data.source import Source, Split

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
"""All that training decodes, see `formats.encoded.decode`. Pillow may look at nothing else: without
this list it would start Ghostscript for an EPS file."""


def build_pictures(data: Data) -> Source:
    """Return the source of a folder of images."""
    from paceline.data.source import Source

    root = source_folder(data.dir, "it must have train/<class>/*.jpg and val/<class>/*.jpg")
    found, left_out = find_images(root, data.split), list[str]()
    if data.skip_bad and not found.problems:
        found, left_out = _without_bad(found)
    if problems := [*found.problems, *found.faults]:
        advice = "; --data.skip-bad leaves them out" * (not found.problems)
        more = f" (and {len(problems) - 1:,} more problems)" if problems[1:] else ""
        raise UserError(f"{problems[0]}{more}{advice}")
    for name, images in found.splits.items():
        if not images:
            raise UserError(f"{found.root}: the {name} split has no good image")
    images = [image for images in found.splits.values() for image in images]
    splits = {name: _split(found.root, images) for name, images in found.splits.items()}
    digest = files_digest(found.root, images)
    validation = splits.get("validation")
    train, test = splits["train"], splits["test"]
    return Source(train, test, found.classes, None, digest, validation, tuple(left_out))


def files_digest(root: Path, files: Sequence[tuple[str, int]]) -> str:
    """Return the digest of paths, labels and sizes, and of the content of some files."""
    sizes = [[size for size, _ in part] for part in _stamps(root, files)]
    names = [f"{label} {path}".encode(errors="surrogateescape") for path, label in files]
    contents = [read_bytes(root / files[index][0]) for index in spread(len(files))]
    return digest_of([str(sizes).encode(), *names, *contents])


def _stamps(root: Path, files: Sequence[tuple[str, int]]) -> list[list[tuple[int, int]]]:
    """Return size and time of change of each file, in parts that are read at a time."""

    def stamps_of(part: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
        with explained("read", root):
            found = [os.stat(os.path.join(root, path)) for path, _ in part]
        return [(each.st_size, each.st_mtime_ns) for each in found]

    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        parts = [files[number::PARALLEL_READS] for number in range(PARALLEL_READS)]
        return list(pool.map(stamps_of, parts))


def _without_bad(found: ImageList) -> tuple[ImageList, list[str]]:
    """Return the list without images that cannot be decoded, and one line for each of them. What
    was found is kept with the data, as an index of records is."""
    images = [image for images in found.splits.values() for image in images]
    identity = str([images, _stamps(found.root, images)]).encode(errors="surrogateescape")
    stored = read_known(str(found.root), identity)
    if stored:
        reasons = json.loads(stored["faults"].tobytes())
    else:
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            reasons = list(pool.map(partial(fault_of, found.root), images))
        faults = np.frombuffer(json.dumps(reasons).encode(), np.uint8)
        save_known(str(found.root), identity, {"faults": faults})
    bad = {image: reason for image, reason in zip(images, reasons, strict=True) if reason}
    kept = {split: [i for i in images if i not in bad] for split, images in found.splits.items()}
    lines = [f"{found.root / image.path}: {reason}" for image, reason in bad.items()]
    return found._replace(splits=kept, faults=()), [*found.faults, *lines]


def fault_of(root: Path, image: LabelledImage) -> str:
    """Return why an image cannot be trained on; nothing if it can."""
    try:
        inspect_image(read_bytes(root / image.path))
    except ValueError as error:
        return str(error)
    return ""


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
        return read_batch(tf.io.read_file, files, files), tf.gather(labels, indices)

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
