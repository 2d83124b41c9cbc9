"""`paceline data ...`: fetch, look at, convert and check data sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from paceline.config.experiment import Data
from paceline.config.job import Spark
from paceline.errors import UserError, did_you_mean


def data(arguments: list[str]) -> int:
    """Fetch, look at, convert and check data sets: paceline data fetch|info|convert|check"""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(
            "\n".join(
                f"  paceline data {name:<8} {command.__doc__}"
                for name, command in _COMMANDS.items()
            )
        )
        return 0
    if arguments[0] not in _COMMANDS:
        raise UserError(
            f"unknown command {' '.join(['data', arguments[0]])!r}; {did_you_mean(arguments[0], list(_COMMANDS))}"
        )
    return _COMMANDS[arguments[0]](arguments[1:])


@dataclass(frozen=True)
class _Fetch:
    """Download a data set, check its digest and unpack it.

    Example: paceline data fetch cifar10 data"""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """cifar10 or cifar100."""
    dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = "data"
    """Where to put it."""


def _fetch(arguments: list[str]) -> int:
    """Download a data set: paceline data fetch cifar10|cifar100 [DIR]"""
    from paceline.cli.commands import parse
    from paceline.data.tools.fetch import fetch

    flags = parse(_Fetch, "paceline data fetch", arguments, _Fetch(tyro.MISSING))
    print(f"ready: --data.dir {fetch(flags.name, flags.dir)}")
    return 0


@dataclass(frozen=True)
class _Look:
    """Look at a data set in a folder: CIFAR, TFRecords, arrays, or folders of pictures.

    Example: paceline data info photos; paceline data check photos"""

    dir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of the data set."""
    data: Annotated[Data, tyro.conf.arg(name="data")]


def _info(arguments: list[str]) -> int:
    """Count what is in a folder, by split and class: paceline data info DIR"""
    from dataclasses import replace

    from paceline.cli.commands import parse
    from paceline.data.remote import local_folder
    from paceline.data.tools.info import describe_source, description_lines, detect

    flags = parse(_Look, "paceline data info", arguments, _Look(tyro.MISSING, Data()))
    folder = local_folder(flags.dir)
    source = detect(folder)  # before TensorFlow is loaded: most mistakes are found here
    # it only reads labels, and has nothing to tell of devices and kernels
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    from paceline.data import build_source

    print(
        "\n".join(
            description_lines(
                describe_source(build_source(replace(flags.data, source=source, dir=folder)))
            )
        )
    )
    return 0


@dataclass(frozen=True)
class _Convert:
    """Turn CIFAR or a folder of pictures into sharded TFRecords.

    Example: paceline data convert photos records --split 0.1"""

    src: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """CIFAR as downloaded, or a folder of pictures: train/<class>/*.jpg and val/..., or one folder of classes with --split."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder for the TFRecords; a conversion that was cut off goes on."""
    split: float = 0.0
    """Share of one folder of classes that becomes the validation split."""
    shards: int = 0
    """Training shards; 0 chooses by size, 1024 for ImageNet."""
    validation_shards: int = 0
    """Validation shards; 0 chooses by size, 128 for ImageNet."""
    processes: int = 0
    """0 for as many as there are cores."""
    labels_file: str = ""
    """For ImageNet's flat validation folder: lines of a file name and its class."""
    names_file: str = ""
    """Lines of a class and what it is called."""
    first_label: int = -1
    """0 or 1; -1 is 1 for ImageNet and 0 for everything else."""
    on: Literal["local", "spark"] = "local"
    """Who writes the shards: processes of this machine, or tasks of a Spark cluster."""
    spark: Spark = field(default_factory=Spark)


def _convert(arguments: list[str]) -> int:
    """Pictures or CIFAR to sharded TFRecords: paceline data convert SRC OUT"""
    from paceline.cli.commands import parse
    from paceline.data.remote import local_folder
    from paceline.data.tools.convert import convert, convert_remote
    from paceline.run_folder.storage import is_remote

    flags = dict(
        vars(
            parse(
                _Convert, "paceline data convert", arguments, _Convert(tyro.MISSING, tyro.MISSING)
            )
        )
    )
    flags["spark"] = flags.pop("spark") if flags.pop("on") == "spark" else None
    src, out = local_folder(flags.pop("src")), flags.pop("out")
    if is_remote(out):
        convert_remote(src, out, **flags)
    else:
        convert(src, out, **flags)
    print(f"ready: --data.source tfrecord --data.dir {out}")
    return 0


def _check(arguments: list[str]) -> int:
    """Read every example: paceline data check DIR; exit code 1 when something is wrong"""
    from paceline.cli.commands import parse
    from paceline.data.remote import local_folder
    from paceline.data.tools.check import check

    flags = parse(_Look, "paceline data check", arguments, _Look(tyro.MISSING, Data()))
    report = check(local_folder(flags.dir), flags.data)
    print("\n".join(report.lines()))
    return 1 if report.problems else 0


FLAGS = {"fetch": _Fetch, "info": _Look, "convert": _Convert, "check": _Look}
_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "fetch": _fetch,
    "info": _info,
    "convert": _convert,
    "check": _check,
}
