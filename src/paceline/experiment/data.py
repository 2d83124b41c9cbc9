"""Which examples a model is trained and tested on. Part of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from paceline.experiment.fields import MOST, Range


@dataclass(frozen=True)
class Data:
    """The data set: where it is, and how it is split."""

    source: str = "shapes"
    """Data set type: shapes, cifar10, cifar100, arrays, tfrecord or pictures, which is a folder of
    images. auto detects it from the folder."""
    dir: str = ""
    """Folder of the data set, for sources that read files."""
    build: str = ""
    """Your own source, as package.module:function or file.py:function. The function takes this Data
    and returns a paceline.Source."""
    validation: Annotated[int, Range(0)] = 0
    """Number of training examples to hold out for choosing the best checkpoint. 0 disables."""
    split: float = 0.0
    """Share of the images that becomes the test split, if the folder has no test split of its own
    (source pictures). The same images are chosen every time."""
    skip_bad: bool = False
    """Leave out damaged TFRecords, the same ones on every worker, instead of stopping. This reads
    the whole data set once at the start."""
    train_size: Annotated[int, Range(0, 10**7)] = 0
    """Number of training images to generate (source shapes). 0 uses the source's default."""
    test_size: Annotated[int, Range(0, 10**7)] = 0
    """Number of test images to generate (source shapes). 0 uses the source's default."""
    image_size: Annotated[int, Range(0, 2**14)] = 0
    """Input size in pixels (square). Required for images of varying size; resizes fixed-size
    images. 0 keeps their size."""


@dataclass(frozen=True)
class Records:
    """How TFRecords are read."""

    image_key: str = ""
    """Feature that contains the image. Default: as noted by the conversion, otherwise
    image/encoded."""
    label_key: str = ""
    """Feature that contains the label. Default: as noted by the conversion, otherwise
    image/class/label."""
    first_label: Annotated[int, Range(-1, 1)] = -1
    """Label of the first class, 0 or 1. -1 uses what the conversion noted, otherwise 0."""
    raw_shape: Annotated[tuple[int, ...], Range(1, MOST)] = ()
    """Height, width and channels of images that are stored as plain bytes, such as 32 32 3.
    Default: as in the first record."""
    raw_order: Literal["", "channels_last", "channels_first"] = ""
    """Order of plain bytes. Default: as noted by the conversion, otherwise channels_last."""
