"""Images per second and core of torchvision's loader, for the table beside `input_path`.

    python benchmarks/input_path_torchvision.py FOLDER_OF_JPEGS

It decodes, crops, resizes, flips and normalizes as `input_path` does, with the transforms of
torchvision's reference training, on as many worker processes as there are cores. It needs torch and
torchvision, and runs in its own process: beside TensorFlow, both would use all cores.
"""

import io
import itertools
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, SIZE, STEPS, ROUNDS = 64, 224, 8, 7


class Images(Dataset):
    """JPEGs in memory, repeated to the size of ImageNet."""

    def __init__(self, encoded: list[bytes]) -> None:
        self._encoded = encoded
        self._prepare = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
                transforms.ConvertImageDtype(torch.float32),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        return 1_281_167

    def __getitem__(self, index: int) -> torch.Tensor:
        encoded = self._encoded[index % len(self._encoded)]
        return self._prepare(Image.open(io.BytesIO(encoded)).convert("RGB"))


def main(folder: str) -> None:
    cores = len(os.sched_getaffinity(0))
    files = [path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")]
    images = Images([path.read_bytes() for path in sorted(files)])
    batches = iter(DataLoader(images, BATCH, shuffle=True, num_workers=cores))
    for _ in range(4 * cores):  # what the workers prepared while they started
        next(batches)
    rates = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for batch in itertools.islice(batches, STEPS):
            assert batch.shape == (BATCH, 3, SIZE, SIZE)
        rates.append(BATCH * STEPS / (time.perf_counter() - began) / cores)
    print(f"torchvision: {statistics.median(rates):.0f} images/s per core")


if __name__ == "__main__":
    main(sys.argv[1])
