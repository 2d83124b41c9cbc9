"""Images for TensorBoard: grids of examples and confusion matrices, as NumPy arrays and PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
"""Height, width, channels."""

RIGHT = (20, 70, 140)
WRONG = (190, 60, 0)


def draw_grid(images: Image, gap: int = 2) -> Image:
    """Draw images, uint8 [n, height, width, channels], in rows on a nearly square white sheet."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, channels)
    sheet = np.full(shape, 255, dtype=np.uint8)
    for i, image in enumerate(images):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        sheet[top : top + height, left : left + width] = image
    return sheet


def draw_confusion(matrix: npt.NDArray[np.int64], classes: Sequence[str], cell: int = 34) -> Image:
    """Draw a confusion matrix: rows are labels, columns predictions.

    A cell has its count, and is darker the larger its share of the row is.
    """
    from PIL import Image, ImageDraw, ImageFont

    size = len(matrix)
    names = [*classes, *(str(index) for index in range(len(classes), size))]
    names = [name[:20] for name in names]
    font = ImageFont.load_default(12)
    margin = 8 + math.ceil(max(font.getlength(name) for name in names))
    sheet = Image.new("RGB", (margin + size * cell, margin + size * cell), "white")
    draw = ImageDraw.Draw(sheet)
    for row, counts in enumerate(matrix):
        for column, share in enumerate(counts / max(1, counts.sum())):
            left, top = margin + column * cell, margin + row * cell
            full = RIGHT if row == column else WRONG
            # Mistakes are few, so they are drawn stronger.
            shade = share if row == column else min(1.0, 4 * share)
            colour = tuple(round(255 + shade * (tone - 255)) for tone in full)
            draw.rectangle((left, top, left + cell - 1, top + cell - 1), colour, "#ddd")
            if counts[column]:
                ink = "white" if shade > 0.5 else "black"
                centre = (left + cell / 2, top + cell / 2)
                draw.text(centre, str(counts[column]), ink, font, "mm")
    for index, name in enumerate(names):
        draw.text((margin - 4, margin + (index + 0.5) * cell), name, "black", font, "rm")
        heading = Image.new("RGB", (margin - 4, cell), "white")
        ImageDraw.Draw(heading).text((0, cell / 2), name, "black", font, "lm")
        sheet.paste(heading.rotate(90, expand=True), (margin + index * cell, 0))
    return np.asarray(sheet)


def png(image: Image) -> bytes:
    """Return an image as the content of a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return buffer.getvalue()
