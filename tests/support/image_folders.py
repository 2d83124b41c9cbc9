"""Folders of small images, their conversion in this process, and what a split contains."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from paceline.data.build_source import build_source
from paceline.data.source import Source, Split
from paceline.experiment.experiment import Data
from paceline.formats.convert import convert


def draw(
    seed: int, mode: str = "RGB", kind: str = "JPEG", size: tuple[int, int] = (40, 30)
) -> bytes:
    """Return a small image of soft noise, encoded."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR).convert(mode).save(stream, kind)
    return stream.getvalue()


def write_images(
    folder: Path,
    per_class: int = 6,
    test: str = "val",
    classes: tuple[str, ...] = ("ant", "bee", "cat"),
) -> Path:
    """Write JPEG files into train/<class>/ and, two of each class, into `test`/<class>/."""
    for part, count in (("train", per_class), (test, 2)):
        for label, name in enumerate(classes):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                content = draw(100 * label + number + (50 if part == test else 0))
                (folder / part / name / f"{name}-{part}-{number}.jpg").write_bytes(content)
    return folder


def convert_here(src: Path, out: Path, processes: int = 1, **settings: Any) -> dict[str, Any]:
    """Convert in this process."""
    return convert(src, out, processes=processes, **settings)


def build(source: str, folder: Path | str, **options: Any) -> Source:
    """Build a source of a folder."""
    return build_source(Data(source=source, dir=str(folder), **options))


def read_all(split: Split) -> tuple[Any, Any]:
    """Return all images and labels of a split, as arrays."""
    raw, labels = tf.function(split.read)(tf.range(split.size, dtype=tf.int64))
    return raw.numpy(), labels.numpy()


def content_of(split: Split) -> list[tuple[bytes, int]]:
    """Return all examples of a split of encoded images, sorted."""
    raw, labels = read_all(split)
    return sorted(zip(raw.tolist(), labels.tolist(), strict=True))
