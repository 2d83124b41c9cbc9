"""The experiment: everything that decides the numbers, as frozen, validated data that JSON can
hold.

It knows nothing of places, run folders or TensorFlow. The names of fields are the flags of the
command line; the docstring below a field is the help text of its flag.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.errors import UserError
from paceline.experiment.dataclass_json import check_choices, differences, from_json, to_json
from paceline.experiment.early_stopping import EarlyStopping as EarlyStopping
from paceline.experiment.limits import Block, check_rules
from paceline.experiment.optimizer import Optimizer as Optimizer
from paceline.experiment.optimizer import Schedule as Schedule


@dataclass(frozen=True)
class Data:
    """The data set, and how its images are prepared."""

    source: str = "shapes"
    """Name of the data set: shapes, cifar10, cifar100, arrays, tfrecord or pictures. With auto, the
    content of the folder decides."""
    dir: str = ""
    """Folder of the data set, for sources that read files."""
    build: str = ""
    """Your own source, as package.module:function or file.py:function. The function takes this Data
    and returns a paceline.Source."""
    validation: int = 0
    """Number of training examples to hold out for choosing the best checkpoint; 0 holds out
    none."""
    split: float = 0.0
    """Share of the images that becomes the test split, if the folder has no test split of its own
    (source pictures). The same images are chosen every time."""
    image_key: str = ""
    """Feature that holds the image in TFRecords. If empty: as noted by the conversion, otherwise
    image/encoded."""
    label_key: str = ""
    """Feature that holds the label in TFRecords. If empty: as noted by the conversion, otherwise
    image/class/label."""
    first_label: int = -1
    """Label of the first class in TFRecords, 0 or 1. If -1: as noted by the conversion, otherwise
    0."""
    raw_shape: tuple[int, ...] = ()
    """Height, width and channels of images that are stored as plain bytes in TFRecords. If empty,
    the first record decides."""
    raw_order: Literal["", "channels_last", "channels_first"] = ""
    """Order of those bytes. If empty: as noted by the conversion, otherwise channels_last."""
    skip_bad: bool = False
    """Leave out damaged TFRecords, the same ones on every worker, instead of stopping. This reads
    the whole data set once at the start."""
    train_size: int = 0
    """Number of training images to generate (source shapes); 0 is the source's default."""
    test_size: int = 0
    """Number of test images to generate (source shapes); 0 is the source's default."""
    padding: int = 0
    """Pixels added on each side before a random crop of the original size; 0 does not crop."""
    padding_mode: Literal["zeros", "reflect"] = "zeros"
    """Value of the pixels that are added around an image: 0, or those of its mirror image."""
    crop_size: int = 0
    """Side in pixels of the crops that the model sees of images of a fixed size, in training at
    random places and in evaluation in the centre. It may be larger than the images: they are
    padded. 0 is the size of the images."""
    sizes: tuple[int, ...] = ()
    """Sides in pixels of the training images in the first epochs, such as 16 20. Images are resized
    before they are augmented. The model must accept images of any size. Evaluation and later epochs
    take the usual size."""
    size_epochs: tuple[float, ...] = ()
    """Epoch at which each of these sizes ends, such as 1 2.5."""
    flip: bool = False
    """Flip a random half of the training images left to right."""
    alternate_flip: bool = False
    """With flip: flip each image in every second epoch instead of at random, so that a short
    training sees both sides of all images."""
    cutout: int = 0
    """Side in pixels of a square that is blanked at a random place of each training image; 0 blanks
    none."""
    brightness: float = 0.0
    """Largest number that is added to all pixels of a training image after scaling; each image has
    a random number up to it, of either sign. 0 adds none."""
    contrast: float = 0.0
    """Largest share by which the pixels of a training image are multiplied more or less after
    scaling, random for each image; 0 leaves them."""
    saturation: float = 0.0
    """Largest share by which the colours of a training image become more or less vivid, random for
    each image; 0 leaves them."""
    hue: float = 0.0
    """Largest turn of the colours of a training image around the colour circle, as a share of the
    circle, random for each image; 0.5 gives any colour, 0 turns none."""
    rand_augment: int = 0
    """Number of random changes to each training image (RandAugment): rotations, shifts, contrast
    and so on, each drawn from 14; 0 changes none."""
    rand_magnitude: float = 9.0
    """Strength of the changes of rand-augment, 0 to 10."""
    random_erasing: float = 0.0
    """Probability with which a random rectangle of a training image is blanked, of 2 to 33 % of its
    area; 0 blanks none."""
    mixup: float = 0.0
    """Alpha of mixup, which blends pairs of images and their labels within a replica's slice; 0
    blends none."""
    cutmix: float = 0.0
    """Alpha of cutmix, which replaces a rectangle of each image by that of another one of the
    replica's slice, and the same share of its label; 0 replaces none. With mixup too, each image
    gets one of the two."""
    image_size: int = 0
    """Side in pixels of the square images that the model sees. Required for encoded images of any
    size; enlarges small ones. 0 leaves images of a fixed size as they are."""
    crop: Literal["area", "short-side"] = "area"
    """Random crop of encoded training images. area: a random share of the area with an aspect ratio
    of 3/4 to 4/3. short-side: a square, after the short side was resized to 256/224 to 512/224 of
    the image size. Evaluation takes the central square after resizing the short side to 256/224."""
    crop_area_min: float = 0.08
    """Smallest share of an image's area that a training crop takes (crop area)."""
    scaling: Literal["standardise", "unit", "mean", "mean_std", "bgr_mean", "application"] = (
        "mean_std"
    )
    """Scaling of pixels. standardise: each image to mean 0 and standard deviation 1; unit: x/128 -
    1; mean: subtract the channel means below; mean_std: also divide by the channel deviations
    below; bgr_mean: as mean, then exchange red and blue; application: as the model of
    keras.applications expects it."""
    mean: tuple[float, float, float] | Literal["auto"] = (125.3, 123.0, 113.9)
    """Channel means (0 to 255) for mean and mean_std. auto: these and the deviations are computed
    from the training images at the start."""
    std: tuple[float, float, float] = (63.0, 62.1, 66.7)
    """Channel standard deviations (0 to 255) for mean_std."""


@dataclass(frozen=True)
class Model:
    """The network: a ResNet of the family, or any Keras model."""

    build: str = ""
    """Your own Keras model, as package.module:function or file.py:function. The function is called
    with image_shape and num_classes. A .keras file is a model with the weights to start from,
    keras:NAME a model of keras.applications with a new head."""
    layout: Literal["cifar", "imagenet", "speedrun"] = "cifar"
    """cifar: a 3x3 convolution and three stages, for small images. imagenet: a 7x7 convolution with
    stride 2, max-pooling and four stages. speedrun: no ResNet, but six 3x3 convolutions with
    max-pooling after a 2x2 convolution, for short trainings on small images."""
    depth: int = 20
    """Number of layers. cifar: 6n+2, or 9n+2 with bottleneck blocks; imagenet: 18, 34, 50, 101, 152
    or 200."""
    version: Literal["v1", "v1.5", "v2"] = "v1"
    """v1: He et al. 2015. v1.5: bottlenecks of imagenet have their stride on the 3x3 convolution,
    not on the first 1x1 (those of cifar always do). v2: pre-activation, He et al. 2016."""
    block: Block = "basic"
    """Convolutions of a block: basic has two 3x3, bottleneck 1x1, 3x3, 1x1. With layout imagenet,
    the depth decides."""
    shortcut: Literal["", "A", "A-pool", "B", "B-norm", "B-first"] = ""
    """Shortcut where a block changes shape; empty is A for cifar and B-norm for imagenet. A: every
    second pixel, zero channels; A-pool: average pooling, zero channels; B: 1x1 convolution; B-norm:
    1x1 convolution and BatchNorm; B-first: as B-norm, also in the first block of the first
    stage."""
    width: int = 0
    """Channels of the first stage, doubled in each later stage; 0 is 16 for cifar and 64 for
    imagenet. speedrun: 64, and four times as many in the second and third stage."""
    zero_gamma: bool = False
    """Initialise the scale of the last BatchNorm of each block with 0, so that a block starts as
    its shortcut (v1, v1.5)."""
    norm_momentum: float = 0.9
    """Share of the old moving statistics that BatchNorm keeps in each step."""
    norm_epsilon: float = 1e-5
    """Number that BatchNorm adds to variances."""
    norm_scale: bool = True
    """Whether BatchNorm has a trained scale besides its offset."""
    activation: Literal["relu", "silu", "gelu"] = "relu"
    """Activation after each BatchNorm. silu: z sigmoid(z); gelu: z sigmoid(1.702 z)."""
    leakiness: float = 0.0
    """Slope of ReLU below zero; 0 is the usual ReLU."""
    initializer: Literal[
        "he_fan_out", "he_normal", "lecun_normal", "glorot_uniform", "identity"
    ] = "he_fan_out"
    """Distribution of the initial weights of convolutions. identity: the first outputs are a copy
    of the inputs, the others have uniform weights."""
    whitening: int = 0
    """Number of training images from which the filters of the first convolution are computed, so
    that its outputs are not correlated and have the variance 1. The layer needs two filters for
    each number of a patch, such as 24 for 2x2 pixels of 3 channels. 0 initialises it as the
    others."""
    num_classes: int = 0
    """Number of outputs; 0 is the number of classes of the data."""
    outputs: Literal["logits", "probabilities"] = "logits"
    """Whether the model returns logits or probabilities."""
    init_from: str = ""
    """Run folder or .keras file whose weights training starts from. Layers with another shape, such
    as the head, are initialised anew. keras:NAME starts from the published weights of a model of
    keras.applications, in Keras's cache or in a file (keras:NAME:FILE), and is that model, if build
    is empty."""
    freeze: tuple[str, ...] = ()
    """Layers whose weights stay as they are: names, their beginnings or patterns, ranges such as
    stem..stage3, or backbone, which is all but the last layer with weights. Their BatchNorm uses
    its stored statistics."""


@dataclass(frozen=True)
class Sync:
    """What replicas share, and how often."""

    method: Literal["gradients", "weights", "async"] = "gradients"
    """gradients: every step applies the mean gradient. weights: each replica trains alone for
    `every` steps, then all state is averaged. async: each replica's gradient is applied when it
    arrives, with 1/replicas of the rate (parameter servers only)."""
    every: int = 10
    """Steps between two averages (method weights)."""
    max_staleness: int = -1
    """Largest number of other gradients that are applied between a replica's reading of the weights
    and the update by its gradient (method async); -1 is no limit."""


@dataclass(frozen=True)
class Experiment:
    """All that decides the numbers. The same experiment gives the same bits in every place."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    sync: Sync = field(default_factory=Sync)
    early_stopping: EarlyStopping = field(default_factory=EarlyStopping)
    epochs: float = 1.0
    """Passes over the training data."""
    steps: int = 0
    """Total number of steps, instead of epochs; 0 uses epochs."""
    global_batch_size: int = 128
    """Examples in one step, over all replicas."""
    replicas: int = 2
    """Slices of the global batch, each with its own BatchNorm statistics. As many as there
    are cores or GPUs is fastest. At least as many as there are workers."""
    threads_per_replica: int = 1
    """Threads inside a TensorFlow operation. Above 1, a process computes one replica at a time."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Arithmetic of the layers; the state is always float32. float16, for GPUs, scales the loss so
    that small gradients are not lost."""
    kernels: Literal["auto", "own", "tensorflow"] = "auto"
    """What computes convolutions and BatchNorm on CPUs. own: Paceline's kernels (AVX2, float32),
    about twice as fast; tensorflow: TensorFlow's; auto: own where they can be used. The choice
    decides the bits: it is stored in the run and compared between workers."""
    evaluate_every: float = 1.0
    """Epochs between evaluations; 0 evaluates only at the end."""
    save_every: float = 1.0
    """Epochs between checkpoints; 0 saves only at the end."""
    seed: int = 0
    """Seed for initialisation, shuffling and augmentation."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_rules(self)

    @property
    def replica_batch_size(self) -> int:
        """Examples of one replica in one step."""
        return self.global_batch_size // self.replicas

    def to_json(self) -> dict[str, Any]:
        """Return the experiment as plain containers."""
        plain: dict[str, Any] = to_json(self)
        return plain

    @staticmethod
    def from_json(values: dict[str, Any]) -> Experiment:
        """Rebuild an experiment; an unknown field is an error.

        Earlier versions had a field `exact`; every experiment is exact now.
        """
        if not values.get("exact", True):
            raise UserError(
                "this experiment has exact = false, which this version does not have: every sum "
                "has a fixed order; train it again, or use an earlier version"
            )
        known = {name: value for name, value in values.items() if name != "exact"}
        return from_json(Experiment, known)

    def digest(self) -> str:
        """Return the hash in the name of the run folder.

        It covers what differs from the defaults, so that a new field does not change old names.
        """
        changes = differences(Experiment().to_json(), self.to_json(), everything=True)
        return hashlib.sha256("\n".join(changes).encode()).hexdigest()[:8]
