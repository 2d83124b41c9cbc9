"""Multiply-adds of the CIFAR ResNets, from the shapes of their layers.

Only convolutions and the last matrix product count, because the ResNets are compared with a matrix
product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from paceline.config.experiment import Experiment
from paceline.config.phases import build_phases
from paceline.config.plan import build_plan


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


def training_flops_of(experiment: Experiment, train_size: int) -> float:
    """Return the operations of a whole training on CIFAR images, in all its image sizes.

    A layer counts as in `training_flops`; one whose weights are always frozen counts forward only.
    """
    plan = build_plan(experiment, train_size)
    phases = build_phases(experiment, plan)
    ends = [phase.first for phase in phases[1:]] + [plan.total_steps]
    total = 0.0
    for phase, end in zip(phases, ends, strict=True):
        side = phase.image_size or experiment.data.crop_size or 32
        images = (end - phase.first) * experiment.global_batch_size
        total += images * _flops_of_an_image(experiment, side)
    return total


def _flops_of_an_image(experiment: Experiment, side: int) -> int:
    import keras

    from paceline.models import build_model

    model = build_model(replace(experiment, precision="float32"), (side, side, 3), 10)
    total = 0
    for layer in model.layers:
        if not isinstance(layer, keras.layers.Conv2D | keras.layers.Dense):
            continue
        pixels = 1
        for length in layer.output.shape[1:-1]:
            pixels *= length
        passes = 1 if layer.name.startswith("whiten") else 3
        total += passes * 2 * pixels * layer.kernel.shape.num_elements()
    return total
