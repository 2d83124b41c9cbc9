"""The CIFAR-10 that all contenders read.

It is the real one if it is on this machine, else files of the same format and size.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

RECORD_BYTES = 1 + 3 * 32 * 32
TRAINING_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
MEAN = (125.3, 123.0, 113.9)
STD = (63.0, 62.1, 66.7)


def find_cifar10() -> Path | None:
    """Return the folder of data_batch_1.bin, from PACELINE_CIFAR10 or ~/.cache/cifar10-dev."""
    given = Path(os.environ.get("PACELINE_CIFAR10", "~/.cache/cifar10-dev")).expanduser()
    return next(
        (
            folder
            for folder in (given, given / "cifar-10-batches-bin")
            if (folder / TRAINING_FILES[0]).exists()
        ),
        None,
    )


@contextmanager
def cifar10_folder() -> Iterator[tuple[str, str]]:
    """Return a folder in CIFAR-10's binary format, and a note about its content."""
    if found := find_cifar10():
        yield str(found), "data: the real CIFAR-10"
        return
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        generator = np.random.default_rng(0)
        for name in (*TRAINING_FILES, *TEST_FILES):
            records = generator.integers(0, 256, (10_000, RECORD_BYTES), np.uint8)
            records[:, 0] %= 10
            records.tofile(Path(folder, name))
        yield (
            folder,
            "data: random images with the sizes of CIFAR-10, which was not found; "
            "set PACELINE_CIFAR10 to its folder",
        )


def load_training_images(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images as uint8 [50000, 32, 32, 3] and labels as int64 [50000]."""
    return load_images(folder, TRAINING_FILES)


def load_images(folder: str, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of these files."""
    records = np.concatenate(
        [np.fromfile(Path(folder, name), np.uint8).reshape(-1, RECORD_BYTES) for name in names]
    )
    pictures = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pictures), records[:, 0].astype(np.int64)
