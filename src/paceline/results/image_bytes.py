"""Image files of any usual format as JPEG or PNG, which TensorFlow decodes as in training."""

from __future__ import annotations

import io
import struct

import numpy as np

from paceline.errors import first_line

MAX_PIXELS = 90_000_000
"""Larger images are refused: decoded, they would take gigabytes."""
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""All that Pillow may read. Without this list it would start Ghostscript for an EPS file, and
guesses the format from the content, whatever the name of the file."""
PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"


def png_size(width: int, height: int) -> bytes:
    """Return the bytes 16 to 24 of a PNG of this size."""
    return struct.pack(">II", width, height)


def as_jpeg_or_png(data: bytes) -> bytes:
    """Return JPEG and PNG as they are, and any other format that Pillow reads as PNG.

    Raises ValueError with the reason if the data is not a usable image. Of JPEG and PNG only the
    first bytes are checked.
    """
    if not data:
        raise ValueError("is empty")
    width, height = _size(data)
    if width * height > MAX_PIXELS:
        raise ValueError(
            f"has {width * height / 1e6:,.0f} megapixels; "
            f"{MAX_PIXELS / 1e6:.0f} is the most: make it smaller"
        )
    return data if data.startswith((JPEG, PNG)) else to_png(data)


def _size(data: bytes) -> tuple[int, int]:
    from PIL import Image, UnidentifiedImageError

    if data.startswith(PNG) and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])  # faster than Pillow
        return width, height
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.size
    except UnidentifiedImageError:
        raise ValueError("is not an image") from None
    except Exception as error:  # damaged data can raise anything, and Pillow has its own limit
        raise ValueError(f"cannot be decoded: {first_line(error)}") from None


def to_png(data: bytes) -> bytes:
    """Return any image that Pillow reads as an RGB PNG; raises ValueError otherwise.

    As in training, the EXIF orientation counts for JPEG only, and what is transparent in a GIF is
    black.
    """
    from PIL import Image, ImageOps

    file = io.BytesIO()
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            upright = ImageOps.exif_transpose(image) if image.format == "JPEG" else image
            if upright.mode.startswith("I;16"):  # Pillow would clip values above 255
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            if image.format == "GIF":
                black = Image.new("RGBA", image.size, "black")
                upright = Image.alpha_composite(black, image.convert("RGBA"))
            upright.convert("RGB").save(file, "PNG", compress_level=1)
    except Exception as error:  # damaged data can raise anything
        raise ValueError(f"cannot be decoded: {first_line(error)}") from None
    return file.getvalue()
