"""The network of the CIFAR-10 speedrun, after airbench94 (Jordan 2024): a 2x2 convolution, three
stages of two 3x3 convolutions, the maximum over the image, logits.

Every layer accepts images of any size, so that a training may begin with small ones.
"""

import keras
from keras import layers

from paceline.experiment.experiment import Model
from paceline.models.resnet import Layers

PATCH = 2
"""Side of the patches that the first convolution sees."""


def build_speedrun(
    model: Model, image_shape: tuple[int, int, int], num_classes: int, seed: int = 0
) -> keras.Model:
    """Return the network. The first convolution has two filters for each number of a patch."""
    build, width = Layers(model, seed), model.width or 64
    inputs = keras.Input(image_shape, name="image")
    glorot = build.initializer("glorot_uniform", "whiten_conv")
    first = layers.Conv2D(
        2 * PATCH**2 * image_shape[2], PATCH, kernel_initializer=glorot, name="whiten_conv"
    )
    x = build.act(first(inputs), f"whiten_{model.activation}")
    for stage, filters in enumerate((width, 4 * width, 4 * width), 1):
        name = f"stage{stage}"
        x = build.conv(x, filters, 3, 1, f"{name}_conv1")
        x = layers.MaxPooling2D(2, name=f"{name}_pool")(x)
        x = build.norm_act(x, f"{name}_1")
        x = build.conv(x, filters, 3, 1, f"{name}_conv2")
        x = build.norm_act(x, f"{name}_2")
    x = layers.GlobalMaxPooling2D(name="head_max")(x)
    uniform = build.initializer("uniform", "head_dense")
    x = layers.Dense(
        num_classes, use_bias=False, kernel_initializer=uniform, dtype="float32", name="head_dense"
    )(x)
    logits = layers.Rescaling(1 / (4 * width), dtype="float32", name="head_scale")(x)
    return keras.Model(inputs, logits, name="speedrun")
