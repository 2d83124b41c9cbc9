"""`paceline data ...`: fetch, describe, convert and check data sets."""

import logging
import os
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from paceline.cli.parse import DataFolder
from paceline.errors import printable
from paceline.experiment.experiment import Data, Records, check_records

SplitShare = Annotated[float, tyro.conf.arg(name="data.split", aliases=["--split"])]
"""As `paceline train` names it."""


@dataclass(frozen=True)
class Fetch:
    """Download a data set, check its digest and unpack it: paceline data fetch NAME [DIR]

    Example: paceline data fetch cifar10 data
    """

    name: Annotated[
        Literal["cifar10", "cifar100"], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")
    ]
    """The data set: cifar10 or cifar100."""
    dir: DataFolder = "data"
    """Folder to write it to."""

    def __call__(self) -> int:
        from paceline.formats.fetch import fetch

        print(f"ready: --data.dir {fetch(self.name, self.dir)}")
        return 0


@dataclass(frozen=True)
class _DataFlags:
    dir: DataFolder
    """Folder of the data set."""
    split: SplitShare = 0.0
    """Share of the images to use as the test split, if there is no test folder."""
    records: Records = field(default_factory=Records)


@dataclass(frozen=True)
class Info(_DataFlags):
    """Count the examples in a folder, by split and class: paceline data info DIR

    The folder contains CIFAR, TFRecords, tars, Parquet, arrays, or folders of images.

    Example: paceline data info photos
    """

    def __call__(self) -> int:
        from paceline.formats.check import describe
        from paceline.formats.detect import detect
        from paceline.storage.locations import local_folder

        check_records(self.records)
        folder = local_folder(self.dir)
        source = detect(folder)  # before TensorFlow is loaded: it finds most mistakes
        # It only reads labels, so messages of TensorFlow about devices and kernels are noise; what
        # really fails is an exception.
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        os.environ |= quiet | {"CUDA_VISIBLE_DEVICES": "-1"}
        from paceline.data.build_source import build_source

        built = build_source(Data(source=source, dir=folder, split=self.split), self.records)
        shape = " x ".join(map(str, built.image_shape or ())) or "encoded, of any size"
        print(f"images: {shape}", *map(printable, describe(built).table()), sep="\n")
        return 0


@dataclass(frozen=True)
class Convert:
    """Convert CIFAR, Parquet or images to sharded TFRecords: paceline data convert SRC OUT

    Example: paceline data convert photos records --data.split 0.1
    """

    src: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """CIFAR as downloaded, or a folder of images.
    The images are in train/<class>/ and val/<class>/, or in <class>/ with --data.split."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder for the TFRecords. An interrupted conversion continues."""
    split: SplitShare = 0.0
    """Share of the images for the validation split, 0 to 1, if there is one folder of classes."""
    shards: int = 0
    """Number of training shards. With 0, it depends on the number of images."""
    processes: int = 0
    """Number of processes. 0 uses one per core."""
    first_label: Literal[0, 1] = 0
    """Label of the first class. Tools for ImageNet expect 1."""

    def __call__(self) -> int:
        from paceline.formats.convert import convert
        from paceline.storage.locations import local_folder

        folder = local_folder(self.src)
        convert(folder, self.out, self.split, self.shards, self.first_label, self.processes)
        print(f"ready: --data.dir {printable(self.out)}")
        return 0


@dataclass(frozen=True)
class Check(_DataFlags):
    """Read every example of a data set and report what is wrong: paceline data check DIR

    The exit code is 1 if something is wrong.

    Example: paceline data check photos
    """

    def __call__(self) -> int:
        from paceline.formats.check import check
        from paceline.storage.locations import local_folder

        check_records(self.records)
        report = check(local_folder(self.dir), self.split, self.records)
        count = len(report.problems)
        notes = [f"note: {note}" for note in report.notes]
        print(*map(printable, [*report.table(), *report.problems, *notes]), sep="\n")
        print(f"{count:,} problem{'s' * (count > 1)}" if count else "no problems")
        return 1 if count else 0
