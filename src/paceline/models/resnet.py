"""The ResNet family (He et al. 2015; 2016 for pre-activation), for small and for large pictures, as one Keras functional model.

Layer names are fixed, so that names of weights never depend on what else the process built.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import keras
from keras import layers

from paceline.config.experiment import IMAGENET_STAGES, Model
from paceline.models.batch_norm import FusedBatchNormalization

_INITIALIZERS = {
    "he_fan_out": lambda: keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"),
    "he_normal": lambda: keras.initializers.HeNormal(),
    "lecun_normal": lambda: keras.initializers.LecunNormal(),
    "glorot_uniform": lambda: keras.initializers.GlorotUniform(),
}


def build_resnet(model: Model, image_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """A stem, stages of blocks that halve the picture and double the channels, mean, logits."""
    model, stages = _complete(model)
    unit = _pre_activation if model.version == "v2" else _post_activation
    inputs = keras.Input(image_shape, name="image")
    x = _stem(model, inputs)
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            first = not stage and not block
            x = unit(
                model,
                x,
                model.width * 2**stage,
                stride,
                first,
                f"stage{stage + 1}_block{block + 1}",
            )
    if model.version == "v2":
        x = _norm_act(model, x, "head")
    x = layers.GlobalAveragePooling2D(name="head_mean")(x)
    x = layers.Dense(num_classes, name="head_dense", dtype="float32")(x)
    return keras.Model(inputs, x, name=f"resnet{model.depth}{model.version}")


def _complete(model: Model) -> tuple[Model, tuple[int, ...]]:
    """The model with what its layout and depth decide filled in, and the number of blocks of each stage."""
    if model.layout == "imagenet":
        block, stages = IMAGENET_STAGES[model.depth]
        own = dataclasses.replace(
            model, block=block, width=model.width or 64, shortcut=model.shortcut or "B-norm"
        )
        return own, stages
    blocks = (model.depth - 2) // (6 if model.block == "basic" else 9)
    return dataclasses.replace(model, width=model.width or 16, shortcut=model.shortcut or "A"), (
        blocks,
    ) * 3


def _stem(model: Model, x: keras.KerasTensor) -> keras.KerasTensor:
    large = model.layout == "imagenet"
    x = _conv(model, x, model.width, 7 if large else 3, 2 if large else 1, "stem_conv")
    if model.version != "v2":
        x = _norm_act(model, x, "stem")
    return layers.MaxPooling2D(3, 2, padding="same", name="stem_pool")(x) if large else x


def _conv(
    model: Model, x: keras.KerasTensor, filters: int, kernel: int, stride: int, name: str
) -> keras.KerasTensor:
    kernel_initializer = _INITIALIZERS[model.initializer]()
    padding = "same"
    if model.layout == "imagenet" and stride > 1 and kernel > 1:
        # Published ResNets pad both sides alike, whatever the size of the picture; "same" would pad below and to the right only.
        # Small pictures keep "same": it is their results that are known, and a pad of their first stages costs time.
        x, padding = layers.ZeroPadding2D(kernel // 2, name=f"{name}_pad")(x), "valid"
    return layers.Conv2D(
        filters,
        kernel,
        stride,
        padding=padding,
        use_bias=False,
        kernel_initializer=kernel_initializer,
        name=name,
    )(x)


def _norm(model: Model, x: keras.KerasTensor, name: str, gamma: str = "ones") -> keras.KerasTensor:
    return FusedBatchNormalization(
        momentum=model.norm_momentum, epsilon=model.norm_epsilon, gamma_initializer=gamma, name=name
    )(x)


def _act(model: Model, x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return (
        layers.LeakyReLU(model.leakiness, name=name)(x)
        if model.leakiness
        else layers.ReLU(name=name)(x)
    )


def _norm_act(model: Model, x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return _act(model, _norm(model, x, f"{name}_norm"), f"{name}_relu")


def _convolutions(model: Model, filters: int, stride: int) -> list[tuple[int, int, int]]:
    """(filters, kernel, stride) of the convolutions of one block."""
    if model.block == "basic":
        return [(filters, 3, stride), (filters, 3, 1)]
    first = stride if model.version == "v1" and model.layout == "imagenet" else 1
    return [(filters, 1, first), (filters, 3, stride // first), (4 * filters, 1, 1)]


def _post_activation(
    model: Model, x: keras.KerasTensor, filters: int, stride: int, first: bool, name: str
) -> keras.KerasTensor:
    """v1: convolution, norm, activation; the last activation comes after the sum."""
    branch, convolutions = x, _convolutions(model, filters, stride)
    for i, (width, kernel, step) in enumerate(convolutions, 1):
        branch = _conv(model, branch, width, kernel, step, f"{name}_conv{i}")
        if i < len(convolutions):
            branch = _norm_act(model, branch, f"{name}_{i}")
        else:
            branch = _norm(
                model, branch, f"{name}_norm{i}", "zeros" if model.zero_gamma else "ones"
            )
    shortcut = _shortcut(model, x, convolutions[-1][0], stride, first, name)
    return _act(model, layers.Add(name=f"{name}_add")([branch, shortcut]), f"{name}_relu")


def _pre_activation(
    model: Model, x: keras.KerasTensor, filters: int, stride: int, first: bool, name: str
) -> keras.KerasTensor:
    """v2: norm, activation, convolution; the shortcut leaves after the first activation where it is a projection or the first block."""
    branch, shortcut, convolutions = x, x, _convolutions(model, filters, stride)
    for i, (width, kernel, step) in enumerate(convolutions, 1):
        branch = _norm_act(model, branch, f"{name}_{i}")
        if i == 1 and (first or model.shortcut.startswith("B")):
            shortcut = (
                branch
                if _changes_shape(model, x, convolutions[-1][0], stride, first) or first
                else x
            )
        branch = _conv(model, branch, width, kernel, step, f"{name}_conv{i}")
    shortcut = _shortcut(model, shortcut, convolutions[-1][0], stride, first, name)
    return layers.Add(name=f"{name}_add")([branch, shortcut])


def _changes_shape(
    model: Model, x: keras.KerasTensor, filters: int, stride: int, first: bool
) -> bool:
    return stride > 1 or x.shape[-1] != filters or (first and model.shortcut == "B-first")


def _shortcut(
    model: Model, x: keras.KerasTensor, filters: int, stride: int, first: bool, name: str
) -> keras.KerasTensor:
    if not _changes_shape(model, x, filters, stride, first):
        return x
    if model.shortcut.startswith("B"):
        x = _conv(model, x, filters, 1, stride, f"{name}_shortcut_conv")
        return (
            x
            if model.shortcut == "B" or model.version == "v2"
            else _norm(model, x, f"{name}_shortcut_norm")
        )
    if stride > 1:  # pooling over one pixel with stride 2 takes every second pixel
        pool = partial(layers.AveragePooling2D, stride if model.shortcut == "A-pool" else 1, stride)
        x = pool(name=f"{name}_shortcut_pool")(x)
    missing = filters - x.shape[-1]
    return (
        keras.ops.pad(x, [[0, 0], [0, 0], [0, 0], [missing // 2, missing - missing // 2]])
        if missing
        else x
    )
