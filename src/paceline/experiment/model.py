"""The network. Part of the experiment."""

from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.experiment.fields import Range

Block = Literal["basic", "bottleneck"]

IMAGENET_STAGES: dict[int, tuple[Block, tuple[int, ...]]] = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
    200: ("bottleneck", (3, 24, 36, 3)),
}
"""By depth: the kind of block, and the number of blocks in each stage (He et al. 2015, table 1; 200
from He et al. 2016)."""

NETWORKS = {"cifar": "ResNet-{depth}", "imagenet": "ResNet-{depth}", "speedrun": "speedrun"}
"""By layout: the name of the network."""


@dataclass(frozen=True)
class Model:
    """The network: a ResNet of the family, or any Keras model."""

    build: str = ""
    """Your own Keras model, as package.module:function or file.py:function. The function is called
    with image_shape and num_classes. A .keras file provides the model and its initial weights.
    keras:NAME is a keras.applications model with a new head."""
    layout: Literal["cifar", "imagenet", "speedrun"] = "cifar"
    """cifar: a 3x3 convolution and three stages, for small images. imagenet: a 7x7 convolution with
    stride 2, max-pooling and four stages. speedrun: not a ResNet but six 3x3 convolutions with
    max-pooling after a 2x2 convolution, for short runs on small images."""
    depth: Annotated[int, Range(1, 4096)] = 20
    """Number of layers. cifar: 6n+2 (bottlenecks 9n+2); imagenet: 18, 34, 50, 101, 152 or 200."""
    version: Literal["v1", "v1.5", "v2"] = "v1"
    """v1: He et al. 2015. v1.5: imagenet bottlenecks have their stride on the 3x3 convolution
    instead of the first 1x1 (cifar bottlenecks always do). v2: pre-activation, He et al. 2016."""
    block: Block = "basic"
    """Convolutions in a block: two 3x3, or 1x1, 3x3, 1x1. Layout imagenet decides by depth."""
    shortcut: Literal["", "A", "A-pool", "B", "B-norm", "B-first"] = ""
    """Shortcut where a block changes shape. A: every second pixel, zero channels; A-pool: average
    pooling, zero channels; B: 1x1 convolution; B-norm: 1x1 convolution and BatchNorm; B-first: like
    B-norm, also in the first block of the first stage. Default: A (cifar), B-norm (imagenet)."""
    width: Annotated[int, Range(0, 2**14)] = 0
    """Channels of the first stage, doubled in each later stage. speedrun has four times as many in
    the second and third stage. 0 uses 16 for cifar and 64 for imagenet and speedrun."""
    zero_gamma: bool = False
    """Initialize the scale of each block's last BatchNorm to 0 (v1, v1.5)."""
    norm_momentum: float = 0.9
    """BatchNorm momentum (Keras convention: weight of the old statistics)."""
    norm_epsilon: float = 1e-5
    """BatchNorm epsilon."""
    norm_scale: bool = True
    """Whether BatchNorm has a trainable scale, in addition to its offset."""
    activation: Literal["relu", "silu", "gelu"] = "relu"
    """Activation after each BatchNorm. silu: z sigmoid(z); gelu: z sigmoid(1.702 z)."""
    leakiness: float = 0.0
    """Negative slope of ReLU. 0 is plain ReLU."""
    initializer: Literal[
        "he_fan_out", "he_normal", "lecun_normal", "glorot_uniform", "identity"
    ] = "he_fan_out"
    """Distribution of the initial weights of convolutions. identity: the first outputs copy the
    inputs, and the other outputs get uniform random weights."""
    whitening: Annotated[int, Range(0)] = 0
    """Initialize the first convolution to whiten patches, using this many training images. The
    layer must have 2 x patch-size filters (24 for 2x2x3). 0 disables."""
    num_classes: Annotated[int, Range(0, 10**6)] = 0
    """Number of outputs. 0 uses the number of classes in the data."""
    outputs: Literal["logits", "probabilities"] = "logits"
    """Whether the model returns logits or probabilities."""
    init_from: str = ""
    """Run folder or .keras file whose weights training starts from. Layers with a different shape,
    such as the head, are initialized again. keras:NAME loads a keras.applications model with its
    ImageNet weights (and uses that architecture unless --model.build is set), from Keras's cache or
    from a file (keras:NAME:FILE)."""
    freeze: tuple[str, ...] = ()
    """Layers to freeze: names, name prefixes, glob patterns, ranges (stem..stage3) or backbone
    (everything except the last layer with weights). Their BatchNorm uses its stored statistics."""
