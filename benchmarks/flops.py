"""Multiply-adds of the CIFAR ResNets, from the shapes of their layers.

Only convolutions and the last matrix product count, because the ResNets are compared with a matrix
product.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """A convolution, or with side 1 and kernel 1 a dense layer."""

    side: int
    kernel: int
    channels_in: int
    channels_out: int

    @property
    def multiply_adds(self) -> int:
        return self.side**2 * self.kernel**2 * self.channels_in * self.channels_out


def resnet_products(
    depth: int, side: int = 32, width: int = 16, num_classes: int = 10
) -> Iterator[Product]:
    """Return the layers of a ResNet v1 of basic blocks with the parameter-free shortcut (A)."""
    blocks_per_stage, remainder = divmod(depth - 2, 6)
    assert remainder == 0, f"depth {depth} is not 6n+2"
    yield Product(side, 3, 3, width)
    channels = width
    for stage in range(3):
        stage_width, stage_side = width * 2**stage, side // 2**stage
        for _ in range(blocks_per_stage):
            yield Product(stage_side, 3, channels, stage_width)
            yield Product(stage_side, 3, stage_width, stage_width)
            channels = stage_width
    yield Product(1, 1, channels, num_classes)


def forward_multiply_adds(depth: int) -> int:
    return sum(product.multiply_adds for product in resnet_products(depth))


def training_flops(depth: int) -> int:
    """Return the operations to train on one image.

    Forward, gradient of the inputs and gradient of the weights are a product each, with an addition
    and a multiplication per term.
    """
    return 3 * 2 * forward_multiply_adds(depth)
