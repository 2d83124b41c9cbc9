"""Which images a model is trained and tested on, how training images are changed at random, and how
pixels are scaled. Part of the experiment."""

from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.experiment.fields import MOST, Range

Share = Annotated[float, Range(0, 1)]
Side = Annotated[int, Range(0, 2**14)]
"""Pixels."""
Views = Literal["none", "mirror", "shifts"]
"""Test-time augmentation: the versions of an image whose predictions are averaged. none: the image.
mirror: also its mirror image. shifts: also both, shifted by one pixel in two directions."""


@dataclass(frozen=True)
class Data:
    """The data set: where it is, and how it is split."""

    source: str = "shapes"
    """Data set type: shapes, cifar10, cifar100, arrays, tfrecord, webdataset, parquet or pictures,
    which is a folder of images. auto detects it from the folder."""
    dir: str = ""
    """Folder of the data set, for sources that read files. For CIFAR, a pattern such as
    'DIR/data_batch_[1-4]*' takes only these training files."""
    test: str = ""
    """File with CIFAR's test images, if not the one in the folder."""
    build: str = ""
    """Your own source, as package.module:function or file.py:function. The function takes this Data
    and returns a paceline.Source."""
    validation: Annotated[int, Range(0)] = 0
    """Number of training examples to hold out for choosing the best checkpoint, if the data has no
    validation split. 0 disables."""
    split: float = 0.0
    """Share of the images that becomes the test split, if the folder has no test split.
    The same images are chosen every time."""
    skip_bad: bool = False
    """Leave out damaged images and records, the same ones on every worker, instead of stopping.
    This reads the whole data set once at the start."""
    train_size: Annotated[int, Range(0, 10**7)] = 0
    """Number of training images to generate (source shapes). 0 uses the source's default."""
    test_size: Annotated[int, Range(0, 10**7)] = 0
    """Number of test images to generate (source shapes). 0 uses the source's default."""
    image_size: Side = 0
    """Side of the input in pixels. Required for images of varying size. 0 keeps their size."""


@dataclass(frozen=True)
class Records:
    """How TFRecords and Parquet are read."""

    image_key: str = ""
    """Feature or column with the image. Default: the conversion's, or else image/encoded."""
    label_key: str = ""
    """Feature or column with the label. Default: the conversion's, or else image/class/label."""
    first_label: Annotated[int, Range(-1, 1)] = -1
    """Label of the first class, 0 or 1. -1 uses the conversion's, or else 0."""
    raw_shape: Annotated[tuple[int, ...], Range(1, MOST)] = ()
    """Height, width and channels of images that are stored as plain bytes, such as 32 32 3.
    Default: the conversion's."""
    raw_order: Literal["", "channels_last", "channels_first"] = ""
    """Order of plain bytes. Default: the conversion's, or else channels_last."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes to training images."""

    padding: Side = 0
    """Pixels added on each side before a random crop of the original size. 0 disables."""
    padding_mode: Literal["zeros", "reflect"] = "zeros"
    """What is added around an image: zeros, or its mirror image."""
    crop_size: Side = 0
    """Crop size in pixels for fixed-size images (random crops in training, center crops in
    evaluation). Larger than the image pads it. 0 uses the image size."""
    crop: Literal["area", "short-side"] = "area"
    """Random crop of encoded training images. area: a random share of the area with an aspect ratio
    of 3/4 to 4/3. short-side: resize the short side to a random length (256/224 to 512/224 of the
    image size), then cut out a square. Evaluation resizes to 256/224 and takes the center."""
    crop_area_min: Annotated[float, Range(0, 1, excludes_lowest=True)] = 0.08
    """Smallest share of an image's area that a training crop takes (crop area)."""
    sizes: Annotated[tuple[int, ...], Range(1, 2**14)] = ()
    """Image sizes in pixels of the first epochs of training, such as 16 20. Images are resized
    before they are augmented. The model must accept any size. Later epochs use the usual size."""
    size_epochs: Annotated[tuple[float, ...], Range(0, excludes_lowest=True)] = ()
    """Epoch at which each of `sizes` ends, such as 1 2.5."""
    flip: bool = False
    """Flip a random half of the training images left to right."""
    alternate_flip: bool = False
    """With flip: flip each image in every second epoch, not at random. For short runs."""
    cutout: Side = 0
    """Side in pixels of a square that is blanked at a random position. 0 disables."""
    brightness: Annotated[float, Range(0)] = 0.0
    """Random brightness shift in [-B, B] per image, in units after scaling. 0 disables."""
    contrast: Share = 0.0
    """Random contrast factor in [1-C, 1+C] per image. 0 disables."""
    saturation: Share = 0.0
    """Random saturation factor in [1-S, 1+S] per image. 0 disables."""
    hue: Annotated[float, Range(0, 0.5)] = 0.0
    """Random hue shift, as a fraction of the color wheel (0 to 0.5). 0 disables."""
    rand_augment: Annotated[int, Range(0, 20)] = 0
    """Number of random changes to each training image (RandAugment), each chosen from 14 kinds,
    such as rotation, shift and contrast. 0 disables."""
    rand_magnitude: Annotated[float, Range(0, 10)] = 9.0
    """Strength of the changes of rand-augment, 0 to 10."""
    random_erasing: Share = 0.0
    """Probability of blanking a random rectangle, 2 to 33 % of the image. 0 disables."""
    mixup: Annotated[float, Range(0)] = 0.0
    """Mixup alpha. Blends pairs of images and labels within a replica's batch. 0 disables."""
    cutmix: Annotated[float, Range(0)] = 0.0
    """CutMix alpha. Pastes a rectangle from another image in the same replica's batch and mixes the
    labels. With mixup too, each image gets one of the two. 0 disables."""


@dataclass(frozen=True)
class Scaling:
    """How pixels are scaled before they enter the model."""

    method: Literal["standardize", "unit", "mean", "mean_std", "bgr_mean", "application"] = (
        "mean_std"
    )
    """standardize: each image to mean 0 and standard deviation 1. unit: x/128 - 1. mean: subtract
    the channel means. mean_std: also divide by the channel deviations. bgr_mean: like mean, then
    exchange red and blue. application: as the model of keras.applications expects."""
    mean: tuple[float, float, float] | Literal["auto"] = (125.3, 123.0, 113.9)
    """Channel means (0 to 255) for mean and mean_std. auto: means and deviations are computed from
    the training images at the start."""
    std: Annotated[tuple[float, float, float], Range(0, excludes_lowest=True)] = (63.0, 62.1, 66.7)
    """Channel standard deviations (0 to 255) for mean_std."""
