"""The ResNet family (He et al. 2015; 2016 for pre-activation) as one Keras functional model.

Layer names are fixed. The names of weights, and the random numbers that initialize them, therefore
do not depend on what else the process built.
"""

from dataclasses import dataclass, replace

import keras
from keras import KerasTensor as Tensor
from keras import layers

from paceline.experiment.experiment import Model
from paceline.experiment.model import IMAGENET_STAGES
from paceline.models.initial_weights import InitialWeights
from paceline.models.layers import FusedBatchNormalization, SigmoidGelu


def build_resnet(
    model: Model, image_shape: tuple[int, int, int], num_classes: int, seed: int = 0
) -> keras.Model:
    """Return a stem, stages that halve the image and double the channels, mean, logits."""
    if model.layout == "imagenet":
        block, stages = IMAGENET_STAGES[model.depth]
        width, shortcut = model.width or 64, model.shortcut or "B-norm"
        model = replace(model, block=block, width=width, shortcut=shortcut)
    else:
        stages = ((model.depth - 2) // (6 if model.block == "basic" else 9),) * 3
        model = replace(model, width=model.width or 16, shortcut=model.shortcut or "A")
    build = Layers(model, seed)
    inputs = keras.Input(image_shape, name="image")
    x = build.stem(inputs)
    for stage, blocks in enumerate(stages):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            name = f"stage{stage + 1}_block{number + 1}"
            x = build.block(x, model.width * 2**stage, stride, not stage and not number, name)
    if model.version == "v2":
        x = build.norm_act(x, "head")
    x = layers.GlobalAveragePooling2D(name="head_mean")(x)
    kernel = build.initializer("glorot_uniform", "head_dense")
    dense = layers.Dense(num_classes, name="head_dense", dtype="float32", kernel_initializer=kernel)
    return keras.Model(inputs, dense(x), name=f"resnet{model.depth}{model.version}")


@dataclass(frozen=True)
class Layers:
    """Adds layers and blocks to a Keras graph. `first` says whether a block is the first of all."""

    model: Model
    seed: int

    def stem(self, x: Tensor) -> Tensor:
        large = self.model.layout == "imagenet"
        kernel, stride = (7, 2) if large else (3, 1)
        x = self.conv(x, self.model.width, kernel, stride, "stem_conv")
        if self.model.version != "v2":
            x = self.norm_act(x, "stem")
        return layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x) if large else x

    def initializer(self, kind: str, layer: str) -> InitialWeights:
        return InitialWeights(kind, layer, self.seed)

    def conv(self, x: Tensor, filters: int, kernel: int, stride: int, name: str) -> Tensor:
        padding = "same"
        if self.model.layout == "imagenet" and stride > 1 and kernel > 1:
            # Published ResNets pad both sides alike, whatever the size of the image; "same" would
            # pad below and to the right only. Small images keep "same": their published results
            # have it, and padding in their first stages costs time.
            x, padding = layers.ZeroPadding2D(kernel // 2, name=f"{name}_pad")(x), "valid"
        first = self.initializer(self.model.initializer, name)
        options = {"padding": padding, "use_bias": False, "kernel_initializer": first}
        return layers.Conv2D(filters, kernel, stride, **options, name=name)(x)

    def norm(self, x: Tensor, name: str, gamma: str = "ones") -> Tensor:
        return FusedBatchNormalization(
            momentum=self.model.norm_momentum,
            epsilon=self.model.norm_epsilon,
            scale=self.model.norm_scale,
            gamma_initializer=gamma,
            name=name,
        )(x)

    def act(self, x: Tensor, name: str) -> Tensor:
        leakiness, activation = self.model.leakiness, self.model.activation
        if activation == "gelu":
            return SigmoidGelu(name=name)(x)
        if activation == "silu":
            return layers.Activation("silu", name=name)(x)
        layer = layers.LeakyReLU(leakiness, name=name) if leakiness else layers.ReLU(name=name)
        return layer(x)

    def norm_act(self, x: Tensor, name: str) -> Tensor:
        return self.act(self.norm(x, f"{name}_norm"), f"{name}_relu")

    def block(self, x: Tensor, filters: int, stride: int, first: bool, name: str) -> Tensor:
        """v1: convolution, norm, activation; the last activation comes after the sum. v2: norm,
        activation, convolution; the shortcut starts after the first activation if it is a
        projection or the block is the first of all."""
        model, branch, start, convolutions = self.model, x, x, self.convolutions(filters, stride)
        outputs, last = convolutions[-1][0], len(convolutions)
        changes = stride > 1 or x.shape[-1] != outputs or (first and model.shortcut == "B-first")
        projects = changes and model.shortcut.startswith("B")
        for i, (width, kernel, step) in enumerate(convolutions, 1):
            if model.version == "v2":
                branch = self.norm_act(branch, f"{name}_{i}")
                start = branch if i == 1 and (first or projects) else start
            branch = self.conv(branch, width, kernel, step, f"{name}_conv{i}")
            if model.version != "v2" and i < last:
                branch = self.norm_act(branch, f"{name}_{i}")
        if model.version != "v2":
            gamma = "zeros" if model.zero_gamma else "ones"
            branch = self.norm(branch, f"{name}_norm{last}", gamma)
        shortcut = self.shortcut(start, outputs, stride, name) if changes else start
        total = layers.Add(name=f"{name}_add")([branch, shortcut])
        return total if model.version == "v2" else self.act(total, f"{name}_relu")

    def convolutions(self, filters: int, stride: int) -> list[tuple[int, int, int]]:
        """Return (filters, kernel, stride) of the convolutions of one block."""
        if self.model.block == "basic":
            return [(filters, 3, stride), (filters, 3, 1)]
        strides_first = self.model.version == "v1" and self.model.layout == "imagenet"
        first = stride if strides_first else 1
        return [(filters, 1, first), (filters, 3, stride // first), (4 * filters, 1, 1)]

    def shortcut(self, x: Tensor, filters: int, stride: int, name: str) -> Tensor:
        """Return the input of a block in the shape of its outputs."""
        kind = self.model.shortcut
        if kind.startswith("B"):
            x = self.conv(x, filters, 1, stride, f"{name}_shortcut_conv")
            plain = kind == "B" or self.model.version == "v2"
            return x if plain else self.norm(x, f"{name}_shortcut_norm")
        if stride > 1:  # pooling over one pixel with stride 2 takes every second pixel
            pool = stride if kind == "A-pool" else 1
            x = layers.AveragePooling2D(pool, stride, name=f"{name}_shortcut_pool")(x)
        missing = filters - x.shape[-1]
        below = missing // 2
        return keras.ops.pad(x, [[0, 0]] * 3 + [[below, missing - below]]) if missing else x
