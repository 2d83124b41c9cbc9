"""Find out whether bytes are a whole JPEG or PNG, and of what size, without TensorFlow.

A JPEG is decoded at an eighth of its size and without its colours. That still reads every coded
byte, so it finds an image that is cut, in a fraction of the time of decoding it.
"""

from __future__ import annotations

import io
import warnings
from typing import NamedTuple

CHANNELS = {"1": 1, "L": 1, "I;16": 1, "I": 1, "LA": 2, "P": 3, "RGB": 3, "RGBA": 4, "CMYK": 4}


class ImageFacts(NamedTuple):
    """The header of an image. The format is that of its bytes, whatever the file is called."""

    format: str
    height: int
    width: int
    channels: int
    colorspace: str


def inspect_image(data: bytes) -> ImageFacts:
    """Return the facts of an image. Raise ValueError if it cannot be decoded, with the reason."""
    from PIL import Image

    if not data:
        raise ValueError("it is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks on EXIF and size are not faults
            with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
                kind, mode, size = image.format, image.mode, image.size
                if kind != "PNG":
                    image.draft("L", (1, 1))
                image.load()
    except Image.UnidentifiedImageError:
        raise ValueError("it is neither JPEG nor PNG") from None
    except Exception as error:  # a damaged image can raise anything
        raise ValueError((str(error).splitlines() or [type(error).__name__])[0]) from None
    channels = CHANNELS.get(mode, 3)
    colorspace = "CMYK" if mode == "CMYK" else "Grayscale" if channels < 3 else "RGB"
    return ImageFacts("PNG" if kind == "PNG" else "JPEG", size[1], size[0], channels, colorspace)
