"""The network, the batches and the optimizer of the recipe cifar10-speedrun in PyTorch.

The crops are those of its later epochs, 33 pixels, which are most of its work.
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from benchmarks.images import MEAN, STD, load_training_images
from benchmarks.pytorch_crops import random_crops

CROP, PADDING, WIDTHS, WHITENED = 33, 2, (64, 256, 256), 24
BRIGHTNESS, CONTRAST = 0.14, 0.13


class Norm(nn.BatchNorm2d):
    """Batch normalization without a scale, and the activation z sigmoid(1.702 z)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return gelu(super().forward(inputs))


def gelu(inputs: torch.Tensor) -> torch.Tensor:
    return inputs * torch.sigmoid(1.702 * inputs)


class Speedrun(nn.Module):
    """A 2x2 convolution that is not trained, three stages of two 3x3 convolutions, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.whitening = nn.Conv2d(3, WHITENED, 2, bias=True)
        for parameter in self.whitening.parameters():
            parameter.requires_grad = False
        stages, channels = list[nn.Module](), WHITENED
        for width in WIDTHS:
            first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            second = nn.Conv2d(width, width, 3, padding=1, bias=False)
            for each in (first, second):
                nn.init.dirac_(each.weight[: each.in_channels])
            stages += [first, nn.MaxPool2d(2), Norm(width), second, Norm(width)]
            channels = width
        self.stages = nn.Sequential(*stages)
        self.classes = nn.Linear(channels, 10, bias=False)
        nn.init.uniform_(self.classes.weight, -(3**0.5), 3**0.5)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        hidden = self.stages(gelu(self.whitening(pictures)))
        return self.classes(hidden.amax((2, 3))) / WIDTHS[-1]


class Muon(torch.optim.Optimizer):
    """As `paceline.maths.update_more`; Nesterov's momentum for all that is no filter."""

    def __init__(self, network: nn.Module) -> None:
        trained = [each for each in network.parameters() if each.requires_grad]
        kinds = {4: (0.18, 0.7, 0.0), 2: (670.0, 0.85, 3e-6), 1: (53.0, 0.85, 3.8e-5)}
        groups = [
            {
                "params": [each for each in trained if each.dim() == dimensions],
                "rate": rate,
                "momentum": momentum,
                "decay": decay,
            }
            for dimensions, (rate, momentum, decay) in kinds.items()
        ]
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            momentum = group["momentum"]
            for weight in group["params"]:
                gradient, state = weight.grad, self.state[weight]
                if group["decay"]:
                    gradient = gradient.add(weight, alpha=group["decay"])
                buffer = state.setdefault("buffer", torch.zeros_like(weight))
                buffer.mul_(momentum).add_(gradient)
                direction = gradient.add(buffer, alpha=momentum)
                if weight.dim() == 4:
                    direction = orthogonal(direction.flatten(1)).view_as(weight)
                    weight.mul_(len(weight) ** 0.5 / weight.norm())
                weight.add_(direction, alpha=-group["rate"])


def orthogonal(gradient: torch.Tensor) -> torch.Tensor:
    """Return a matrix [outputs, inputs] with the same singular vectors, and values near one."""
    a, b, c = 3.4445, -4.7750, 2.0315
    m = gradient / (gradient.norm() + 1e-7)
    for _ in range(3):
        square = m @ m.T
        m = torch.addmm(m, torch.addmm(square, square, square, beta=b, alpha=c), m, beta=a)
    return m


def training_batches(
    folder: str, batch_size: int, rank: int, num_ranks: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield endless shuffled batches: reflected border, crop, flip, brightness and contrast."""
    pictures, labels = (torch.from_numpy(array) for array in load_training_images(folder))
    border = (PADDING, PADDING + CROP - 32) * 2
    padded = functional.pad(pictures.permute(0, 3, 1, 2).float(), border, "reflect")
    side = padded.shape[-1]
    pixels = padded.byte().permute(0, 2, 3, 1).reshape(-1, 3)
    factor = 1 / torch.tensor(STD)
    shift = -torch.tensor(MEAN) * factor
    shuffle = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(labels), generator=shuffle)[rank::num_ranks]
        for start in range(0, len(order) - batch_size + 1, batch_size):
            chosen = order[start : start + batch_size]
            crops = random_crops(pixels, side, chosen, CROP, PADDING)
            light = 2 * torch.rand(2, batch_size, 1, 1, 1) - 1
            scaled = torch.addcmul(shift, crops.float(), factor)
            scaled = torch.addcmul(BRIGHTNESS * light[0], scaled, 1 + CONTRAST * light[1])
            yield scaled.permute(0, 3, 1, 2), labels[chosen]
