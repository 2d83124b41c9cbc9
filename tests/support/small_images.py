"""Encoded images, and eight small ones of two classes as a folder or as TFRecords."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline.formats.tfrecord import record
from paceline.formats.tfrecord.record import framed


def encode(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels.squeeze()) if isinstance(pixels, np.ndarray) else pixels
    image.save(file, kind, **options)
    return file.getvalue()


def write_images(folder: Path, kind: str) -> None:
    images = []
    for number in range(8):
        own = folder / ("val" if number > 5 else "train") / f"class{number % 2}"
        own.mkdir(parents=True, exist_ok=True)
        pixels = np.full((9, 9, 3), number, np.uint8)
        Image.fromarray(pixels).save(own / f"{number}.png")
        images.append((own / f"{number}.png").read_bytes())
    if kind == "tfrecord":
        for path in sorted(folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        records = [
            framed(record.encode({"image/encoded": image, "image/class/label": number % 2}))
            for number, image in enumerate(images)
        ]
        (folder / "train-00000-of-00001").write_bytes(b"".join(records))
        (folder / "validation-00000-of-00001").write_bytes(b"".join(records))
