"""The JPEG folder that the suites `pictures` and `convert` read.

It has real images if they are on this machine, else generated ones.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.harness import ROOT

RECORDS = 2000
BATCH_SIZE = 64
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
REAL = ("imagenet-samples", "imagenette-mini")
_CLASSES = 10
_DRAWN = 120
_SIDES = (
    (500, 375),
    (500, 375),
    (500, 375),
    (375, 500),
    (500, 333),
    (333, 500),
    (640, 480),
    (300, 225),
)


def find_pictures() -> dict[str, list[Path]]:
    """Return JPEGs by folder: those named in REAL, or else all in PACELINE_PICTURES.

    The folders of REAL are in PACELINE_PICTURES or ../shared/data.
    """
    given = os.environ.get("PACELINE_PICTURES", "")
    root = Path(given).expanduser() if given else ROOT.parent / "shared" / "data"
    folders = [root / name for name in REAL if (root / name).is_dir()] or ([root] if given else [])
    found = {
        folder.name: sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
        for folder in folders
    }
    return {name: pictures for name, pictures in found.items() if pictures}


def draw_pictures(folder: Path, count: int) -> list[Path]:
    """Return generated JPEGs with the sizes of ImageNet: patches of colour under fine noise."""
    from PIL import Image

    generator, paths = np.random.default_rng(0), []
    folder.mkdir()
    for number in range(count):
        width, height = _SIDES[number % len(_SIDES)]
        patches = Image.fromarray(generator.integers(0, 256, (12, 16, 3), np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        noise = generator.normal(0, 12, (height, width, 1))
        picture = Image.fromarray(np.clip(np.asarray(patches) + noise, 0, 255).astype(np.uint8))
        paths.append(folder / f"{number:05d}.jpg")
        picture.save(paths[-1], quality=90)
    return paths


@contextmanager
def picture_folder(records: int = RECORDS) -> Iterator[tuple[str, str]]:
    """Return a folder of train/<class>/*.jpg and val/<class>/*.jpg, and a note about them.

    It has `records` training images. They are links to the originals, taken from the folders in
    turn; a folder that is used up starts again from its beginning.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as temporary:
        kinds = find_pictures()
        what = " and ".join(f"{len(pictures)} of {name}" for name, pictures in kinds.items())
        if not kinds:
            kinds = {"drawn": draw_pictures(Path(temporary, "drawn"), min(_DRAWN, records))}
            count = len(kinds["drawn"])
            what = (
                f"{count} generated ones in ImageNet's sizes; set PACELINE_PICTURES to real ones,"
            )
        root, lists, size = Path(temporary, "pictures"), list(kinds.values()), 0
        for split, count in (("train", records), ("val", _CLASSES)):
            for number in range(count):
                originals = lists[number % len(lists)]
                original = originals[number // len(lists) % len(originals)].resolve()
                link = root / split / f"class-{number % _CLASSES}" / f"{number:05d}.jpg"
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(original)
                size += original.stat().st_size
        mean_kb = size / (records + _CLASSES) / 1000
        yield (
            str(root),
            f"pictures: {what} in turn, {records:,} records of {mean_kb:.0f} kB on average",
        )
