"""Data sources by name: a table, imported lazily, and the user's own through `data.build`.

TensorFlow is imported only to build a source: `fetch`, `save_arrays` and `detect` do without it.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from paceline.errors import UserError, did_you_mean
from paceline.experiment.experiment import Data, Records, check_source
from paceline.storage.files import retry
from paceline.storage.locations import is_remote, local_folder

if TYPE_CHECKING:
    from paceline.data.source import Source

SOURCES = {
    "arrays": "paceline.formats.arrays:build_arrays",
    "cifar10": "paceline.formats.cifar:build_cifar10",
    "cifar100": "paceline.formats.cifar:build_cifar100",
    "pictures": "paceline.formats.image_folder:build_pictures",
    "shapes": "paceline.data.shapes:build_shapes",
    "parquet": "paceline.formats.parquet:build_parquet",
    "tfrecord": "paceline.formats.tfrecord.tfrecord_source:build_tfrecord",
    "webdataset": "paceline.formats.webdataset:build_webdataset",
}
OF_RECORDS = ("parquet", "tfrecord", "webdataset")
DETECT = "paceline.formats.detect:detect"
NOTED = Records()
"""TFRecords are read as their conversion noted."""


def build_source(data: Data, records: Records = NOTED) -> Source:
    """Return the source that `data.build` or else `data.source` names; cache a remote folder."""
    if is_remote(data.dir):
        data = dataclasses.replace(data, dir=local_folder(data.dir))
    if data.build:
        from paceline.data.user_source import build_user_source

        source = build_user_source(data)
    else:
        source = retry(lambda: _build_named(data, records))
    if len(source.classes) < 2:
        raise UserError(f"the data has the classes {source.classes}; there must be two or more")
    # The names of folders need not be UTF-8, but class names are written as UTF-8.
    names = (name.encode(errors="backslashreplace").decode() for name in source.classes)
    return dataclasses.replace(source, classes=tuple(names))


def _build_named(data: Data, records: Records) -> Source:
    name = data.source
    check_source(data)
    if name not in SOURCES and name != "auto":
        hint = did_you_mean(name, [*sorted(SOURCES), "auto"])
        raise UserError(f"there is no data source {name!r}; {hint}")
    if name != "shapes":  # which reads no files
        name = _load(DETECT)(data.dir, name)
    if data.test and not name.startswith("cifar"):
        raise UserError(
            f"data.test is {data.test}, but only CIFAR's test file can be chosen; the {name} "
            "source takes the test split of the folder"
        )
    build = _load(SOURCES[name])
    source: Source = build(data, records) if name in OF_RECORDS else build(data)
    return source


def _load(spec: str) -> Any:
    module, _, function = spec.partition(":")
    return getattr(importlib.import_module(module), function)
