"""Checks image files before TensorFlow decodes them, as in training."""

import io
import struct

from paceline.errors import first_line
from paceline.formats.image_folder import FORMATS

MAX_PIXELS = 90_000_000
"""Larger images are refused: decoded, they would take gigabytes."""
PNG = b"\x89PNG\r\n\x1a\n"


def png_size(width: int, height: int) -> bytes:
    """Return the bytes 16 to 24 of a PNG of this size."""
    return struct.pack(">II", width, height)


def find_fault(data: bytes) -> str:
    """Return why the data is not a usable image; empty if its first bytes look like one."""
    from PIL import Image, UnidentifiedImageError

    if not data:
        return "is empty"
    try:
        if data.startswith(PNG) and len(data) >= 24:
            width, height = struct.unpack(">II", data[16:24])  # faster than Pillow
        else:
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
    except UnidentifiedImageError:
        return "is not an image"
    except Exception as error:  # damaged data can raise anything, and Pillow has its own limit
        return f"cannot be decoded: {first_line(error)}"
    if width * height > MAX_PIXELS:
        size = f"{width * height / 1e6:,.0f} megapixels"
        return f"has {size}; {MAX_PIXELS / 1e6:.0f} is the most: make it smaller"
    return ""
