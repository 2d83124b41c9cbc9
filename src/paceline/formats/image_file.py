"""Read an image, and find out whether it is whole and can be trained on, and of what size, without
TensorFlow.

A JPEG is decoded at an eighth of its size and without its colors. That still reads every coded
byte, so it finds an image that is cut, in a fraction of the time of decoding it.
"""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.errors import PassingFault
from paceline.storage.files import may_pass, retry

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
"""All that training decodes, see `formats.encoded.decode`."""


class ImageFacts(NamedTuple):
    """The header of an image. The format is that of its bytes, whatever the file is called."""

    format: str
    height: int
    width: int


def read_image(path: Path) -> bytes:
    """Return the content of a file. Raise ValueError if it cannot be read.

    Raises PassingFault if only the disk fails: that is not the image's fault.
    """
    try:
        return retry(path.read_bytes)
    except OSError as error:
        if may_pass(error):
            raise PassingFault(f"cannot read {path}: {error.strerror}") from error
        raise ValueError(f"it cannot be read: {error.strerror}") from error


def inspect_image(data: bytes) -> ImageFacts:
    """Return the facts of an image. Raise ValueError if it cannot be decoded, with the reason."""
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise ValueError("it is empty")
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
        raise ValueError("it is not a JPEG, PNG, GIF, BMP or WebP image") from None
    except Exception as error:  # a damaged image can raise anything
        raise ValueError((str(error).splitlines() or [type(error).__name__])[0]) from None
    return ImageFacts(kind, height, width)


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
