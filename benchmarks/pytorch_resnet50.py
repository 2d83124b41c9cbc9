"""ResNet-50 v1.5 in PyTorch, as in torchvision, and its batches.

The batches are images of 224 pixels that are in memory.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.images import MEAN, STD

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1 to four times the width; a projection if the shape changes."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = EXPANSION * width
        self.convolution_1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(width)
        self.convolution_2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(width)
        self.convolution_3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.norm_3 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels_out:
            projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels_out))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm_1(self.convolution_1(inputs)), inplace=True)
        hidden = functional.relu(self.norm_2(self.convolution_2(hidden)), inplace=True)
        hidden = self.norm_3(self.convolution_3(hidden))
        return functional.relu(hidden.add_(self.shortcut(inputs)), inplace=True)


class ResNet50(nn.Module):
    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, channels = [], 64
        for stage, (width, count) in enumerate(STAGES):
            for number in range(count):
                blocks.append(Bottleneck(channels, width, 2 if stage and number == 0 else 1))
                channels = EXPANSION * width
        self.blocks = nn.Sequential(*blocks)
        self.classes = nn.Linear(channels, num_classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        hidden = self.pool(functional.relu(self.norm(self.convolution(pictures)), inplace=True))
        return self.classes(self.blocks(hidden).mean((2, 3)))


def training_batches(
    folder: str, batch_size: int, rank: int, num_ranks: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield endless shuffled batches of the arrays of all contenders, scaled."""
    pictures = torch.from_numpy(np.load(Path(folder, "train_images.npy")))
    labels = torch.from_numpy(np.load(Path(folder, "train_labels.npy")).astype(np.int64))
    factor = 1 / torch.tensor(STD)
    shift, shuffle = -torch.tensor(MEAN) * factor, torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(labels), generator=shuffle)[rank::num_ranks]
        for chosen in order.split(batch_size):
            if len(chosen) == batch_size:
                yield (
                    torch.addcmul(shift, pictures[chosen].float(), factor).permute(0, 3, 1, 2),
                    labels[chosen],
                )
